package format

// runObject executes the opcodes that name globals and call them.
func (u *unpickler) runObject(op byte) error {
	switch op {
	case 'c':
		module, err := u.line()
		if err != nil {
			return err
		}
		name, err := u.line()
		if err != nil {
			return err
		}
		return u.pushGlobal(module, name)
	case 0x93: // STACK_GLOBAL
		two, err := u.operands(true, 2)
		if err != nil {
			return err
		}
		module, ok1 := two[0].(string)
		name, ok2 := two[1].(string)
		if !ok1 || !ok2 {
			return u.fail("a global without name")
		}
		return u.pushGlobal(module, name)
	case 'Q':
		return u.persistent()
	}
	return u.reduce()
}

func (u *unpickler) pushGlobal(module, name string) error {
	full := module + "." + name
	if !allowed(full) {
		return u.fail("global %.80q is not allowed", full)
	}
	u.push(global(full))
	return nil
}

// persistent resolves ('storage', type, key, location, numel).
func (u *unpickler) persistent() error {
	v, err := u.pop()
	if err != nil {
		return err
	}
	t, ok := v.(tuple)
	if !ok || len(t) != 5 || t[0] != "storage" {
		return u.fail("a persistent id that is not a storage")
	}
	kind, ok1 := t[1].(global)
	key, ok2 := t[2].(string)
	numel, ok3 := t[4].(int64)
	if !ok1 || !ok2 || !ok3 || !storageName.MatchString(string(kind)) || numel < 0 {
		return u.fail("a damaged storage")
	}
	u.push(storage{string(kind), key, numel})
	return nil
}

// reduce calls an allowed global.
func (u *unpickler) reduce() error {
	two, err := u.operands(true, 2)
	if err != nil {
		return err
	}
	f, ok1 := two[0].(global)
	args, ok2 := two[1].(tuple)
	switch {
	case ok1 && ok2 && f == orderedDict && len(args) == 0:
		u.push(&dict{m: map[string]any{}})
		return nil
	case ok1 && ok2 && f == rebuildTensor && len(args) >= 6:
		t, err := u.tensor(args)
		u.push(t)
		return err
	}
	return u.fail("a call that is not allowed")
}

// tensor makes (storage, offset, size, stride, requires_grad, hooks, ...).
func (u *unpickler) tensor(args tuple) (tensor, error) {
	st, ok1 := args[0].(storage)
	offset, ok2 := args[1].(int64)
	sizes, ok3 := dims(args[2])
	stride, ok4 := dims(args[3])
	if !ok1 || !ok2 || !ok3 || !ok4 || offset < 0 || len(sizes) != len(stride) || len(sizes) > 8 {
		return tensor{}, u.fail("a damaged tensor")
	}
	return tensor{st, offset, sizes, stride}, nil
}

func dims(v any) ([]int64, bool) {
	t, ok := v.(tuple)
	if !ok {
		return nil, false
	}
	out := make([]int64, len(t))
	for i, x := range t {
		n, ok := x.(int64)
		if !ok || n < 0 {
			return nil, false
		}
		out[i] = n
	}
	return out, true
}
