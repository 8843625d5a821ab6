package worker

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestBounds: numbers out of bounds are refused, among them a patience of nothing,
// which would not be what it says.
func TestBounds(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"":                      func(*Config) {},
		"kv_patience above 0":   func(c *Config) { c.KVPatience = 0 },
		"kv_patience above":     func(c *Config) { c.KVPatience = -time.Second },
		"must not be negative":  func(c *Config) { c.Headroom = -1 },
		"log level":             func(c *Config) { c.LogLevel = "loud" },
		"max_batch from max_se": func(c *Config) { c.MaxSeqs = 2 },
	} {
		c := Config{Model: "hub-cloud", Role: "mixed", Runner: "auto", Listen: "127.0.0.1:0", PrefixCache: on, MaxSeqs: 1, MaxBatch: 1, KVPatience: time.Second, LogLevel: "info"}
		change(&c)
		if err := c.Validate(); (err == nil) != (name == "") || err != nil && !strings.Contains(err.Error(), name) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestCheckFiles: what "weir config check" says of the cost model.
func TestCheckFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cost.json")
	c := Config{CostModel: path}
	if err := c.CheckFiles(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	for text, ok := range map[string]bool{`{"pieces":[{"fixed_ms":1}]}`: true, `{"pieces":[{"fixed_ms":-1000000}]}`: false} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := c.CheckFiles(); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := new(Config).CheckFiles(); err != nil {
		t.Error(err)
	}
}
