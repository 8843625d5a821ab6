package format

import (
	"encoding/binary"
	"fmt"
	"math"
	"regexp"
)

// A pickle is a program. This machine runs the few opcodes that torch.save
// needs for numbers, strings, lists, dicts and tensors, and knows three kinds
// of global: torch._utils._rebuild_tensor_v2, the torch storages and
// collections.OrderedDict. Whatever else a pickle names is refused before
// anything is made of it.

// Limits of one pickle.
const (
	maxPickle = 16 << 20
	maxStack  = 1 << 20
)

type (
	global  string
	list    struct{ items []any }
	tuple   []any
	dict    struct{ m map[string]any }
	storage struct {
		kind, key string
		numel     int64
	}
	tensor struct {
		storage       storage
		offset        int64
		sizes, stride []int64
	}
	mark struct{}
)

const (
	rebuildTensor = "torch._utils._rebuild_tensor_v2"
	orderedDict   = "collections.OrderedDict"
)

var storageName = regexp.MustCompile(`^torch\.(Float|Double|Half|BFloat16|Long|Int|Short|Char|Byte|Bool)Storage$`)

func allowed(name string) bool {
	return name == rebuildTensor || name == orderedDict || storageName.MatchString(name)
}

// unpickler runs one pickle.
type unpickler struct {
	data  []byte
	at    int
	stack []any
	memo  map[int]any
	cells int // items ever pushed, against programs that grow by copying
}

// unpickle runs the program and returns its result.
func unpickle(data []byte) (any, error) {
	if len(data) > maxPickle {
		return nil, fmt.Errorf("%w: pickle of %d bytes", ErrFormat, len(data))
	}
	u := &unpickler{data: data, memo: map[int]any{}}
	for {
		op, err := u.byte()
		if err != nil {
			return nil, err
		}
		if op == '.' {
			return u.pop()
		}
		if err := u.run(op); err != nil {
			return nil, err
		}
		if len(u.stack) > maxStack {
			return nil, fmt.Errorf("%w: pickle stack grows beyond %d", ErrFormat, maxStack)
		}
	}
}

func (u *unpickler) fail(format string, a ...any) error {
	return fmt.Errorf("%w: pickle byte %d: %s", ErrFormat, u.at, fmt.Sprintf(format, a...))
}

func (u *unpickler) take(n int) ([]byte, error) {
	if n < 0 || n > len(u.data)-u.at {
		return nil, u.fail("%d more bytes announced than there are", n)
	}
	b := u.data[u.at : u.at+n]
	u.at += n
	return b, nil
}

func (u *unpickler) byte() (byte, error) {
	b, err := u.take(1)
	if err != nil {
		return 0, err
	}
	return b[0], nil
}

// uint reads n little-endian bytes, at most 4.
func (u *unpickler) uint(n int) (int, error) {
	b, err := u.take(n)
	if err != nil {
		return 0, err
	}
	var full [8]byte
	copy(full[:], b)
	return int(binary.LittleEndian.Uint64(full[:])), nil
}

// line reads to the next newline.
func (u *unpickler) line() (string, error) {
	for i := u.at; i < len(u.data); i++ {
		if u.data[i] == '\n' {
			s := string(u.data[u.at:i])
			u.at = i + 1
			return s, nil
		}
	}
	return "", u.fail("a line without end")
}

func (u *unpickler) push(v any) { u.stack = append(u.stack, v) }

func (u *unpickler) pop() (any, error) {
	if len(u.stack) == 0 {
		return nil, u.fail("empty stack")
	}
	v := u.stack[len(u.stack)-1]
	if _, ok := v.(mark); ok {
		return nil, u.fail("a mark where a value should be")
	}
	u.stack = u.stack[:len(u.stack)-1]
	return v, nil
}

// popMark returns what lies above the last mark, and removes both.
func (u *unpickler) popMark() ([]any, error) {
	for i := len(u.stack) - 1; i >= 0; i-- {
		if _, ok := u.stack[i].(mark); ok {
			items := append([]any(nil), u.stack[i+1:]...)
			u.stack = u.stack[:i]
			return items, nil
		}
	}
	return nil, u.fail("no mark")
}

// run executes one opcode.
func (u *unpickler) run(op byte) error {
	switch op {
	case 0x80: // PROTO
		v, err := u.byte()
		if err == nil && (v < 2 || v > 4) {
			return u.fail("protocol %d", v)
		}
		return err
	case 0x95: // FRAME
		_, err := u.take(8)
		return err
	case 'q', 'r', 'h', 'j', 0x94:
		return u.runMemo(op)
	case '(':
		u.push(mark{})
	case '0':
		_, err := u.pop()
		return err
	case 'N':
		u.push(nil)
	case 0x88, 0x89:
		u.push(op == 0x88)
	case 'K', 'M', 'J', 0x8a, 'G', 'X', 0x8c:
		return u.runScalar(op)
	case ')', 't', 0x85, 0x86, 0x87, ']', '}', 'a', 'e', 's', 'u':
		return u.runContainer(op)
	case 'c', 0x93, 'Q', 'R':
		return u.runObject(op)
	default:
		return u.fail("opcode 0x%02x is not allowed", op)
	}
	return nil
}

func (u *unpickler) runMemo(op byte) error {
	var key int
	var err error
	switch op {
	case 'q', 'h':
		key, err = u.uint(1)
	case 'r', 'j':
		key, err = u.uint(4)
	default:
		key = len(u.memo)
	}
	if err != nil {
		return err
	}
	if op == 'h' || op == 'j' {
		v, ok := u.memo[key]
		if !ok {
			return u.fail("nothing stored under %d", key)
		}
		u.push(v)
		return nil
	}
	v, err := u.pop()
	if err != nil {
		return err
	}
	u.push(v)
	u.memo[key] = v
	return nil
}

func (u *unpickler) runScalar(op byte) error {
	switch op {
	case 'K', 'M', 'J':
		n := map[byte]int{'K': 1, 'M': 2, 'J': 4}[op]
		v, err := u.uint(n)
		if op == 'J' {
			v = int(int32(v))
		}
		u.push(int64(v))
		return err
	case 0x8a: // LONG1, two's complement
		n, err := u.uint(1)
		if err != nil {
			return err
		}
		b, err := u.take(n)
		if err != nil || n > 8 {
			return u.fail("an integer of %d bytes", n)
		}
		v := int64(0)
		for i, x := range b {
			v |= int64(x) << (8 * i)
		}
		if n > 0 && n < 8 && b[n-1] >= 0x80 {
			v -= 1 << (8 * n)
		}
		u.push(v)
		return nil
	case 'G':
		b, err := u.take(8)
		if err != nil {
			return err
		}
		u.push(math.Float64frombits(binary.BigEndian.Uint64(b)))
		return nil
	}
	width := 4
	if op == 0x8c {
		width = 1
	}
	n, err := u.uint(width)
	if err != nil {
		return err
	}
	b, err := u.take(n)
	u.push(string(b))
	return err
}

func (u *unpickler) runContainer(op byte) error {
	switch op {
	case ')':
		u.push(tuple(nil))
	case ']':
		u.push(&list{})
	case '}':
		u.push(&dict{m: map[string]any{}})
	case 't':
		items, err := u.popMark()
		u.push(tuple(items))
		return err
	case 0x85, 0x86, 0x87:
		items := make(tuple, op-0x84)
		for i := len(items) - 1; i >= 0; i-- {
			v, err := u.pop()
			if err != nil {
				return err
			}
			items[i] = v
		}
		u.push(items)
	case 'a', 'e':
		return u.appendItems(op == 'a')
	case 's', 'u':
		return u.setItems(op == 's')
	}
	return nil
}

func (u *unpickler) operands(one bool, n int) ([]any, error) {
	if !one {
		return u.popMark()
	}
	items := make([]any, n)
	for i := n - 1; i >= 0; i-- {
		v, err := u.pop()
		if err != nil {
			return nil, err
		}
		items[i] = v
	}
	return items, nil
}

func (u *unpickler) appendItems(one bool) error {
	items, err := u.operands(one, 1)
	if err != nil {
		return err
	}
	v, err := u.pop()
	l, ok := v.(*list)
	if err != nil || !ok {
		return u.fail("append to something that is not a list")
	}
	if u.cells += len(items); u.cells > maxStack {
		return u.fail("too many items")
	}
	l.items = append(l.items, items...)
	u.push(l)
	return nil
}

// setItems keeps string keys; recorder files have no others that matter.
func (u *unpickler) setItems(one bool) error {
	items, err := u.operands(one, 2)
	if err != nil {
		return err
	}
	v, err := u.pop()
	d, ok := v.(*dict)
	if err != nil || !ok || len(items)%2 != 0 {
		return u.fail("items for something that is not a dict")
	}
	if u.cells += len(items); u.cells > maxStack {
		return u.fail("too many items")
	}
	for i := 0; i < len(items); i += 2 {
		if k, ok := items[i].(string); ok {
			d.m[k] = items[i+1]
		}
	}
	u.push(d)
	return nil
}
