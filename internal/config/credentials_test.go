package config

import (
	"strings"
	"testing"
)

// A URL with a user or a password is refused wherever it is shown, and the
// refusal does not show it.
func TestNoCredentials(t *testing.T) {
	type place struct {
		URL string `yaml:"url"`
	}
	type section struct {
		Secret string           `yaml:"secret" secret:"true"`
		URL    string           `yaml:"url"`
		URLs   []string         `yaml:"urls"`
		Places []place          `yaml:"places"`
		Named  map[string]place `yaml:"named"`
	}
	const bad = "https://u:hunter2@host/x"
	for want, s := range map[string]section{
		"url ":          {URL: bad},
		"urls[1] ":      {URLs: []string{"https://host", bad}},
		"places[0].url": {Places: []place{{bad}}},
		"named.a.url":   {Named: map[string]place{"a": {bad}}},
		"url is":        {URL: "http://token@host"},
		"url  is":       {URL: "http://u:hunter2%zz@host"},
		"":              {Secret: bad, URL: "https://host/a@b?c=d@e", URLs: []string{"u@host", "host:1"}},
	} {
		err := New("cloud", &s).Load(func(string) string { return "" })
		if want = strings.ReplaceAll(want, "  ", " "); (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2")) {
			t.Errorf("%+v: %v, want %q", s, err, want)
		}
	}
}
