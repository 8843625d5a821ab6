package worker

import (
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
