package llama

// ParseState lets the fuzz test reach the parser of llama.cpp's states: it
// reports how many tokens and bytes of rows a state holds.
func ParseState(data []byte) (tokens, bytes int, err error) {
	v, err := parseState(data)
	if err != nil {
		return 0, 0, err
	}
	return len(v.cell), len(v.appendRows(nil, 0)), nil
}

// State returns llama.cpp's state of sequence 0.
func (r *Runner) State() ([]byte, error) { return r.getState(0) }

// LayoutKnown reports whether exports carry rows only.
func (r *Runner) LayoutKnown() bool { return r.layout.known() }

// ForgetLayout makes the runner treat its cache as one of unknown shape.
func (r *Runner) ForgetLayout() { r.layout, r.info.KVWhole = layout{}, true }
