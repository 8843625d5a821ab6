package config

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

type section struct {
	Listen   string            `yaml:"listen" default:"127.0.0.1:1" usage:"address"`
	Wait     time.Duration     `yaml:"wait" default:"3s"`
	Count    int               `yaml:"count_me" default:"4"`
	On       bool              `yaml:"on"`
	Names    []string          `yaml:"names" default:"a,b"`
	Password string            `yaml:"password" secret:"true"`
	Pools    map[string]string `yaml:"pools"`
}

func load(t *testing.T, file string, env map[string]string, args ...string) (section, error) {
	t.Helper()
	var s section
	l := New("cloud", &s)
	fs := pflag.NewFlagSet("x", pflag.ContinueOnError)
	l.Flags(fs)
	if file != "" {
		path := filepath.Join(t.TempDir(), "weir.yaml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", path)
	}
	if err := fs.Parse(args); err != nil {
		return s, err
	}
	return s, l.Load(func(k string) string { return env[k] })
}

func TestPrecedence(t *testing.T) {
	file := "cloud:\n  listen: file\n  wait: 5s\n  count_me: 7\n  names: [x]\n  pools: {a: b}\nedge:\n  anything: 1\n"
	s, err := load(t, file, map[string]string{"WEIR_CLOUD_WAIT": "6s", "WEIR_CLOUD_COUNT_ME": "8"}, "--count-me", "9", "--on")
	if err != nil {
		t.Fatal(err)
	}
	if s.Listen != "file" || s.Wait != 6*time.Second || s.Count != 9 || !s.On || s.Names[0] != "x" || s.Pools["a"] != "b" {
		t.Errorf("got %+v", s)
	}
	if s, err = load(t, "", nil); err != nil || s.Listen != "127.0.0.1:1" || s.Wait != 3*time.Second || len(s.Names) != 2 {
		t.Errorf("defaults: %+v, %v", s, err)
	}
}

func TestRefusals(t *testing.T) {
	tests := []struct {
		name, file, want string
		env              map[string]string
		args             []string
	}{
		{name: "unknown key", file: "cloud:\n  listn: x\n", want: "listn"},
		{name: "unknown section", file: "clout:\n  listen: x\n", want: "clout"},
		{name: "wrong type", file: "cloud:\n  count_me: many\n", want: "many"},
		{name: "not a mapping", file: "- a\n", want: "mapping"},
		{name: "env", env: map[string]string{"WEIR_CLOUD_WAIT": "soon"}, want: "WEIR_CLOUD_WAIT"},
		{name: "flag", args: []string{"--wait", "soon"}, want: "wait"},
		{name: "a secret has no flag", args: []string{"--password", "x"}, want: "unknown flag"},
		{name: "missing file", args: []string{"--config", "/nonexistent/weir.yaml"}, want: "/nonexistent/weir.yaml"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := load(t, tt.file, tt.env, tt.args...)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
		})
	}
}

func TestPrintHidesSecrets(t *testing.T) {
	s := section{Password: "hunter2"}
	var out bytes.Buffer
	if err := New("cloud", &s).Print(&out); err != nil || strings.Contains(out.String(), "hunter2") || !strings.Contains(out.String(), "(set)") {
		t.Errorf("printed %s, %v", out.String(), err)
	}
	if s.Password != "hunter2" {
		t.Error("printing changed the section")
	}
}
