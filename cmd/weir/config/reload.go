package config

import (
	"errors"
	"reflect"
	"slices"
	"strings"
)

// ErrNotReloadable is returned by Reload of a configuration that did not come
// from Flags.Load.
var ErrNotReloadable = errors.New("this configuration cannot be read again")

// Reload reads the file again and lays the same flags over it. c itself does
// not change. The result is validated.
func (c *Configuration) Reload() (*Configuration, error) {
	if c.reload == nil {
		return nil, ErrNotReloadable
	}
	n, err := c.reload()
	if err != nil {
		return nil, err
	}
	if err := n.Validate().Err(); err != nil {
		return nil, err
	}
	return n, nil
}

// Changed returns the paths of the fields that differ between c and other,
// sorted. A list that differs is named as a whole.
func (c *Configuration) Changed(other *Configuration) []string {
	var paths []string
	differences(reflect.ValueOf(*c), reflect.ValueOf(*other), "", &paths)
	slices.Sort(paths)
	return paths
}

func differences(a, b reflect.Value, path string, paths *[]string) {
	switch {
	case a.Kind() == reflect.Struct && a.Type() != reflect.TypeFor[PortRange]():
		for i := range a.NumField() {
			tag := tagOf(a.Type().Field(i))
			if tag == "" {
				continue
			}
			differences(a.Field(i), b.Field(i), strings.TrimPrefix(path+"."+tag, "."), paths)
		}
	case a.Kind() == reflect.Pointer && !a.IsNil() && !b.IsNil():
		differences(a.Elem(), b.Elem(), path, paths)
	case a.Kind() == reflect.Slice && a.Len() == 0 && b.Len() == 0:
		// nil and empty are the same list
	case !reflect.DeepEqual(a.Interface(), b.Interface()):
		*paths = append(*paths, path)
	}
}
