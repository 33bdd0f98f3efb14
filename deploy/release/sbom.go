package main

import (
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"runtime/debug"
	"strings"
	"time"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
)

// writeSBOM writes the bill of materials of the binary, in CycloneDX's JSON: the
// modules that the linker used, as `go version -m` prints them.
func (b *binary) writeSBOM(file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	e := cyclonedx.NewBOMEncoder(f, cyclonedx.BOMFileFormatJSON).SetPretty(true)
	if err := e.EncodeVersion(b.sbom(), cyclonedx.SpecVersion1_6); err != nil {
		return fmt.Errorf("bill of materials: %w", err)
	}
	return f.Close()
}

func (b *binary) sbom() *cyclonedx.BOM {
	main := cyclonedx.Component{
		BOMRef: "weir", Type: cyclonedx.ComponentTypeApplication, Name: b.info.Main.Path, Version: b.version,
		PackageURL: purl(b.info.Main.Path, "v"+b.version),
		Licenses:   &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "Apache-2.0"}}},
		Properties: properties(b.info),
	}
	modules := []cyclonedx.Component{{
		BOMRef: "std", Type: cyclonedx.ComponentTypeLibrary, Name: "std", Version: b.info.GoVersion,
		PackageURL: purl("std", strings.TrimPrefix(b.info.GoVersion, "go")),
	}}
	var refs []string
	for _, m := range b.info.Deps {
		c := component(m)
		modules, refs = append(modules, c), append(refs, c.BOMRef)
	}
	refs = append(refs, "std")

	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{Timestamp: b.time.Format(time.RFC3339), Component: &main}
	bom.Components = &modules
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: "weir", Dependencies: &refs}}
	return bom
}

// component describes a module, with the hash that go.sum has for it.
func component(m *debug.Module) cyclonedx.Component {
	if m.Replace != nil {
		m = m.Replace
	}
	c := cyclonedx.Component{
		BOMRef: m.Path + "@" + m.Version, Type: cyclonedx.ComponentTypeLibrary,
		Name: m.Path, Version: m.Version, PackageURL: purl(m.Path, m.Version),
	}
	if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:")); err == nil && len(sum) > 0 {
		c.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum)}}
	}
	return c
}

// purl is the package URL of a module (github.com/package-url/purl-spec, type golang).
func purl(path, version string) string {
	return "pkg:golang/" + path + "@" + url.PathEscape(version)
}

// properties are the settings of the build that change its bytes.
func properties(info *buildinfo.BuildInfo) *[]cyclonedx.Property {
	var all []cyclonedx.Property
	for _, s := range info.Settings {
		all = append(all, cyclonedx.Property{Name: "go:" + s.Key, Value: s.Value})
	}
	return &all
}
