package config

import (
	"encoding/json"
	"maps"
	"os"
	"reflect"
	"slices"
	"testing"
)

// schema is the part of a JSON schema that the test reads.
type schema struct {
	AdditionalProperties *bool
	Properties           map[string]*schema
	Items                *schema
}

// The chart's schema has each field of the configuration, and refuses all others: a pod that
// is given another field does not start.
func TestChartKnowsTheConfiguration(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/helm/weir/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var values schema
	if err := json.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	sameFields(t, "config", values.Properties["config"], reflect.TypeFor[Configuration]())
}

// sameFields compares a schema with a type, and all below.
func sameFields(t *testing.T, path string, s *schema, typ reflect.Type) {
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
		if typ.Kind() == reflect.Slice && s != nil {
			s = s.Items
		}
		typ = typ.Elem()
	}
	fields := map[string]reflect.Type{}
	if typ.Kind() == reflect.Struct {
		for i := range typ.NumField() {
			if tag := tagOf(typ.Field(i)); tag != "" {
				fields[tag] = typ.Field(i).Type
			}
		}
	}
	if len(fields) == 0 {
		return // a value
	}
	if s == nil || s.AdditionalProperties == nil || *s.AdditionalProperties {
		t.Errorf("values.schema.json: %s takes any field", path)
		return
	}
	got, want := slices.Sorted(maps.Keys(s.Properties)), slices.Sorted(maps.Keys(fields))
	if !slices.Equal(got, want) {
		t.Errorf("values.schema.json: %s has the fields %q, want %q", path, got, want)
	}
	for name, typ := range fields {
		sameFields(t, path+"."+name, s.Properties[name], typ)
	}
}
