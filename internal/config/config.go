// Package config fills a role's settings from one YAML file with sections, the
// environment and flags. A flag wins over the environment, that over the file,
// that over the default. Unknown keys are refused.
//
// A section is a struct whose fields carry tags:
//
//	Listen string `yaml:"listen" default:"127.0.0.1:7421" usage:"address of the plain API"`
//
// yaml:"listen" also names the flag --listen and the variable
// WEIR_CLOUD_LISTEN. Fields of struct, slice-of-struct or map type are set by
// the file alone. secret:"true" fields have no flag: the argument list of a
// process is public. Any other field that holds a URL with a user or a password
// is refused.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/weirhq/weir/internal/cli"
)

// MaxFile is the largest configuration file, in bytes.
const MaxFile = 4 << 20

// Sections of the file. A section that is not here is an unknown key.
var Sections = []string{"cloud", "worker", "edge"}

// Validator is implemented by sections that check themselves. Its error names
// the key and the value.
type Validator interface{ Validate() error }

// FileChecker is implemented by sections that name files. "weir config check"
// asks them to read those; a role reads them when it starts.
type FileChecker interface{ CheckFiles() error }

// Loader reads one section into a struct.
type Loader struct {
	section string
	dst     reflect.Value
	fields  []field
	inFile  []field // keys of the file alone
	file    string
	set     map[string]string // flags given
}

type field struct {
	key, def, usage string
	secret          bool
	v               reflect.Value
}

// New returns a Loader of section into dst, a pointer to a struct.
func New(section string, dst any) *Loader {
	l := &Loader{section: section, dst: reflect.ValueOf(dst).Elem(), set: map[string]string{}}
	t := l.dst.Type()
	for i := range t.NumField() {
		f := t.Field(i)
		key := strings.Split(f.Tag.Get("yaml"), ",")[0]
		if key == "" || key == "-" {
			continue
		}
		if !scalar(f.Type) {
			l.inFile = append(l.inFile, field{key: key, usage: f.Tag.Get("usage")})
			continue
		}
		l.fields = append(l.fields, field{key: key, def: f.Tag.Get("default"), usage: f.Tag.Get("usage"),
			secret: f.Tag.Get("secret") == "true", v: l.dst.Field(i)})
	}
	return l
}

// Flags adds --config and a flag for each key to fs.
func (l *Loader) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&l.file, "config", "", "configuration file (YAML)")
	for _, f := range l.fields {
		if f.secret {
			continue
		}
		fl := fs.VarPF(&flagValue{l: l, f: f}, flagName(f.key), "", f.usage)
		fl.DefValue = f.def
		if f.v.Kind() == reflect.Bool {
			fl.NoOptDefVal = "true"
		}
	}
}

// FileKeys is what a usage line adds: the keys without a flag or a variable.
func (l *Loader) FileKeys() string {
	if len(l.inFile) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n\nKeys of section %s in the file alone (examples: docs/operations.md):", l.section)
	for _, f := range l.inFile {
		fmt.Fprintf(&b, "\n      %-12s %s", f.key, f.usage)
	}
	return b.String()
}

// Load fills the struct: defaults, then file, environment and flags. Call it
// after the flags were parsed.
func (l *Loader) Load(getenv func(string) string) error {
	for _, f := range l.fields {
		if f.def != "" {
			if err := setScalar(f.v, f.def); err != nil {
				return fmt.Errorf("default of %s.%s: %w", l.section, f.key, err)
			}
		}
	}
	if l.file != "" {
		if err := l.readFile(); err != nil {
			return err
		}
	}
	for _, f := range l.fields {
		name := EnvName(l.section, f.key)
		if s := getenv(name); s != "" {
			if err := setScalar(f.v, s); err != nil {
				return fmt.Errorf("%s: %w", name, hide(f, err))
			}
		}
	}
	for _, f := range l.fields {
		if s, ok := l.set[f.key]; ok {
			if err := setScalar(f.v, s); err != nil {
				return cli.Usagef("--%s: %s", flagName(f.key), err)
			}
		}
	}
	if err := noCredentials("", l.dst); err != nil {
		return fmt.Errorf("section %s: %w", l.section, err)
	}
	if v, ok := l.dst.Addr().Interface().(Validator); ok {
		if err := v.Validate(); err != nil {
			return fmt.Errorf("section %s: %w", l.section, err)
		}
	}
	return nil
}

// EnvName is the environment variable of a key.
func EnvName(section, key string) string {
	return "WEIR_" + strings.ToUpper(section+"_"+key)
}

func flagName(key string) string { return strings.ReplaceAll(key, "_", "-") }

func hide(f field, err error) error {
	if f.secret {
		return errors.New("the value cannot be used")
	}
	return err
}

func (l *Loader) readFile() error {
	f, err := os.Open(l.file)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return fmt.Errorf("configuration %s: %w", l.file, err)
	}
	if len(data) > MaxFile {
		return fmt.Errorf("configuration %s is larger than %d bytes", l.file, MaxFile)
	}
	if err := Decode(data, l.section, l.dst.Addr().Interface()); err != nil {
		return fmt.Errorf("configuration %s: %w", l.file, err)
	}
	return nil
}

// Decode reads one section of a YAML document into dst and checks the names of
// all sections. A document without the section leaves dst as it is.
func Decode(data []byte, section string, dst any) error {
	doc, err := document(data)
	if err != nil {
		return err
	}
	node, ok := doc[section]
	if !ok || node.Tag == "!!null" {
		return nil
	}
	raw, err := yaml.Marshal(&node)
	if err != nil {
		return fmt.Errorf("section %s: %w", section, err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	dec.KnownFields(true)
	if err := dec.Decode(dst); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("section %s: %w", section, err)
	}
	return nil
}

// Print writes the section as YAML, secrets left out.
func (l *Loader) Print(w io.Writer) error {
	c := reflect.New(l.dst.Type()).Elem()
	c.Set(l.dst)
	t := c.Type()
	for i := range t.NumField() {
		if t.Field(i).Tag.Get("secret") == "true" && !c.Field(i).IsZero() {
			c.Field(i).SetString("(set)")
		}
	}
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	defer enc.Close()
	return enc.Encode(map[string]any{l.section: c.Interface()})
}

// document parses a file into its sections and refuses unknown ones.
func document(data []byte) (map[string]yaml.Node, error) {
	var doc map[string]yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("not a YAML mapping: %w", err)
	}
	for name := range doc {
		if !slices.Contains(Sections, name) {
			return nil, fmt.Errorf("unknown section %q: known are %s", name, strings.Join(Sections, ", "))
		}
	}
	return doc, nil
}

// sectionsOf lists the sections of a file in the order of Sections.
func sectionsOf(data []byte) ([]string, error) {
	doc, err := document(data)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, s := range Sections {
		if _, ok := doc[s]; ok {
			names = append(names, s)
		}
	}
	return names, nil
}

func scalar(t reflect.Type) bool {
	if t == reflect.TypeFor[time.Duration]() {
		return true
	}
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int64, reflect.Float64:
		return true
	case reflect.Slice:
		return t.Elem().Kind() == reflect.String
	}
	return false
}

func setScalar(v reflect.Value, s string) error {
	if v.Type() == reflect.TypeFor[time.Duration]() {
		d, err := time.ParseDuration(s)
		if err != nil {
			return fmt.Errorf("%q is not a duration such as 30s or 100ms", s)
		}
		v.SetInt(int64(d))
		return nil
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(s)
	case reflect.Bool:
		b, err := strconv.ParseBool(s)
		if err != nil {
			return fmt.Errorf("%q is not true or false", s)
		}
		v.SetBool(b)
	case reflect.Int, reflect.Int64:
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return fmt.Errorf("%q is not an integer", s)
		}
		v.SetInt(n)
	case reflect.Float64:
		n, err := strconv.ParseFloat(s, 64)
		if err != nil {
			return fmt.Errorf("%q is not a number", s)
		}
		v.SetFloat(n)
	case reflect.Slice:
		var parts []string
		for _, p := range strings.Split(s, ",") {
			if p = strings.TrimSpace(p); p != "" {
				parts = append(parts, p)
			}
		}
		v.Set(reflect.ValueOf(parts))
	}
	return nil
}

type flagValue struct {
	l *Loader
	f field
}

func (v *flagValue) String() string { return v.f.def }

// Set checks the value against a scratch field, so that a wrong flag is a
// usage error, and keeps it for Load.
func (v *flagValue) Set(s string) error {
	scratch := reflect.New(v.f.v.Type()).Elem()
	if err := setScalar(scratch, s); err != nil {
		return err
	}
	v.l.set[v.f.key] = s
	return nil
}

func (v *flagValue) Type() string {
	if v.f.v.Type() == reflect.TypeFor[time.Duration]() {
		return "duration"
	}
	switch v.f.v.Kind() {
	case reflect.Bool:
		return "bool"
	case reflect.Int, reflect.Int64:
		return "int"
	case reflect.Float64:
		return "float"
	case reflect.Slice:
		return "strings"
	}
	return "string"
}
