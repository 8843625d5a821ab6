package jsonscan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// few is how many names of an object are compared one with another; those of
// more are sorted.
const few = 16

// open is an object or list that a walk is in.
type open struct {
	object bool
	first  int    // of its names so far, in walk.names
	count  int    // of the elements before the current one
	key    []byte // of the current member
}

type walk struct {
	inside []open
	names  [][]byte // of all that is open, one after the other
}

// Repeated returns the path of a member that an object within data has twice,
// such as messages[2].role; twice is false where there is none. data must be
// valid JSON in UTF-8. It is one pass that allocates nothing for a member, but for
// escapes in names.
func Repeated(data []byte) (path string, twice bool) {
	w := walk{inside: make([]open, 0, 16), names: make([][]byte, 0, 64)}
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '{', '[':
			w.inside = append(w.inside, open{object: data[i] == '{', first: len(w.names)})
		case '}', ']':
			if !w.leave() {
				return w.path(), true
			}
		case ',':
			if last := len(w.inside) - 1; last >= 0 {
				w.inside[last].count++
			}
		case '"':
			end := endOfString(data, i)
			if isName(data[end:]) && !w.name(data[i+1:end-1]) {
				return w.path(), true
			}
			i = end - 1
		}
	}
	return "", false
}

// endOfString is the index behind the string that begins at i.
func endOfString(data []byte, i int) int {
	for i++; i < len(data); i++ {
		next := bytes.IndexByte(data[i:], '"')
		if next < 0 {
			break
		}
		i += next
		escapes := 0
		for data[i-1-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return i + 1
		}
	}
	return len(data)
}

func isName(behind []byte) bool {
	for _, c := range behind {
		switch c {
		case ' ', '\t', '\r', '\n':
		default:
			return c == ':'
		}
	}
	return false
}

// name notes a member's name; false if it is seen to be there already.
func (w *walk) name(key []byte) bool {
	if len(w.inside) == 0 { // no valid JSON
		return true
	}
	if bytes.IndexByte(key, '\\') >= 0 {
		key = []byte(unquote(key))
	}
	at := &w.inside[len(w.inside)-1]
	at.key = key
	w.names = append(w.names, key)
	others := w.names[at.first : len(w.names)-1]
	return len(others) >= few || !slices.ContainsFunc(others, func(o []byte) bool { return bytes.Equal(o, key) })
}

// leave ends the innermost object or list; false where a name, then the current
// one, is seen to be there twice.
func (w *walk) leave() bool {
	if len(w.inside) == 0 {
		return true
	}
	at := &w.inside[len(w.inside)-1]
	if names := w.names[at.first:]; len(names) > few {
		slices.SortFunc(names, bytes.Compare)
		for i := 1; i < len(names); i++ {
			if bytes.Equal(names[i-1], names[i]) {
				at.key = names[i]
				return false
			}
		}
	}
	w.names = w.names[:at.first]
	w.inside = w.inside[:len(w.inside)-1]
	return true
}

// path names the current member.
func (w *walk) path() string {
	var at strings.Builder
	for _, o := range w.inside {
		if !o.object {
			fmt.Fprintf(&at, "[%d]", o.count)
			continue
		}
		if at.Len() > 0 {
			at.WriteByte('.')
		}
		at.Write(o.key)
	}
	return at.String()
}

func unquote(key []byte) string {
	var s string
	if json.Unmarshal(slices.Concat([]byte{'"'}, key, []byte{'"'}), &s) != nil {
		return string(key)
	}
	return s
}

// Name is the current member's key without its escapes.
func (s *Object) Name() string {
	if bytes.IndexByte(s.Key, '\\') < 0 {
		return string(s.Key)
	}
	return unquote(s.Key)
}

// Misspelt returns the path of a member of data that encoding/json would read
// into a field of t although its name has other capitals, "" for none. Types
// that decode themselves are not looked into.
func Misspelt(data []byte, t reflect.Type) string {
	if reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return ""
	}
	switch t.Kind() {
	case reflect.Pointer:
		return Misspelt(data, t.Elem())
	case reflect.Slice, reflect.Array:
		list := Elements(data)
		for i := 0; list.Next(); i++ {
			if at := Misspelt(list.Val, t.Elem()); at != "" {
				return fmt.Sprintf("[%d]", i) + dotted(at)
			}
		}
	case reflect.Map:
		for o := Members(data); o.Next(); {
			if at := Misspelt(o.Val, t.Elem()); at != "" {
				return o.Name() + dotted(at)
			}
		}
	case reflect.Struct:
		fields := fieldsOf(t)
		for o := Members(data); o.Next(); {
			f, exact := fields[string(o.Key)]
			if !exact && bytes.IndexByte(o.Key, '\\') >= 0 {
				f, exact = fields[o.Name()]
			}
			if !exact {
				if name := o.Name(); fields.folds(name) {
					return name
				}
				continue
			}
			if at := Misspelt(o.Val, f); at != "" {
				return o.Name() + dotted(at)
			}
		}
	}
	return ""
}

func dotted(at string) string {
	if at[0] == '[' {
		return at
	}
	return "." + at
}

// fields are the names that encoding/json reads into a struct, with their types.
type fields map[string]reflect.Type

var knownFields sync.Map // of reflect.Type

func fieldsOf(t reflect.Type) fields {
	if known, ok := knownFields.Load(t); ok {
		return known.(fields)
	}
	found := fields{}
	for _, f := range reflect.VisibleFields(t) {
		tag := f.Tag.Get("json")
		name, _, _ := strings.Cut(tag, ",")
		switch {
		case !f.IsExported() || tag == "-" || f.Anonymous && name == "":
			continue
		case name == "":
			name = f.Name
		}
		found[name] = f.Type
	}
	knownFields.Store(t, found)
	return found
}

// folds reports whether name is one of the fields' but for its capitals.
func (f fields) folds(name string) bool {
	for field := range f {
		if strings.EqualFold(field, name) {
			return true
		}
	}
	return false
}
