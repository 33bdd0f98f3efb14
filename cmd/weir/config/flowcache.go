package config

import (
	"fmt"
	"slices"
)

// Values of Interface.Hook.
const (
	HookAuto = "auto"
	HookXDP  = "xdp"
	HookTCX  = "tcx"
)

// Values of FlowCache.Mode.
const (
	FlowCacheAuto = "auto"
	FlowCacheOff  = "off"
)

var (
	hooks      = []string{HookAuto, HookXDP, HookTCX}
	flowCaches = []string{FlowCacheAuto, FlowCacheOff}
)

func validateFlowCache(c *Configuration, r *report) {
	if !slices.Contains(flowCaches, c.FlowCache.Mode) {
		r.addf("flowCache.mode", "must be %s, is %q", either(flowCaches), c.FlowCache.Mode)
	}
	for i, f := range c.Interfaces {
		path := fmt.Sprintf("interfaces[%d].hook", i)
		switch {
		case !slices.Contains(hooks, f.Hook):
			r.addf(path, "must be %s, is %q", either(hooks), f.Hook)
		case f.Hook == HookTCX && (f.Mode == ModeZeroCopy || f.Mode == ModeGeneric):
			r.addf(path, "tcx excludes mode %s: the interface has no XDP program", f.Mode)
		case f.Hook == HookTCX && c.FlowCache.Mode == FlowCacheOff:
			r.addf(path, "tcx needs flowCache.mode: auto, without it packets only take longer")
		}
	}
}
