package program

// SetOptions replaces the options. What was translated before stays as it is:
// the caller applies all Services again, since some that had no frontend may
// have one now.
func (t *Translator) SetOptions(opts Options) {
	opts.NodeAddresses = sorted(opts.NodeAddresses)
	t.opts = opts
}
