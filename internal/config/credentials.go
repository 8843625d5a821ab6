package config

import (
	"fmt"
	"reflect"
	"strings"
)

// noCredentials refuses URLs that bear a user or a password outside the fields
// that are secret: Print shows them, and so do logs and messages. v is a struct, a
// list, a map or a string; key is where it stands.
func noCredentials(key string, v reflect.Value) error {
	switch v.Kind() {
	case reflect.String:
		if bearsUser(v.String()) {
			return fmt.Errorf("%s is a URL with a user or a password, which would be shown: leave it out of the URL", key)
		}
	case reflect.Slice:
		for i := range v.Len() {
			if err := noCredentials(fmt.Sprintf("%s[%d]", key, i), v.Index(i)); err != nil {
				return err
			}
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			if err := noCredentials(fmt.Sprintf("%s.%v", key, k), v.MapIndex(k)); err != nil {
				return err
			}
		}
	case reflect.Struct:
		t := v.Type()
		for i := range t.NumField() {
			name, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",")
			if name == "" || name == "-" || t.Field(i).Tag.Get("secret") == "true" {
				continue
			}
			if err := noCredentials(strings.TrimPrefix(key+"."+name, "."), v.Field(i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// bearsUser reports whether s is a URL, even one that cannot be parsed, with
// something before an @ in its authority.
func bearsUser(s string) bool {
	_, rest, ok := strings.Cut(s, "://")
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		rest = rest[:i]
	}
	return ok && strings.Contains(rest, "@")
}
