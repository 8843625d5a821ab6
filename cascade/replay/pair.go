package replay

import (
	"fmt"
	"strings"
)

// pair are the models that a file has scores of, in the order of its columns.
type pair struct {
	noun   string
	models []model
}

type model struct{ name, column string }

// verified ends the names of models whose solutions a verifier ranked; where a
// file has other kinds of the same models too, these are meant.
const verified = "_ver"

// findPair looks for columns that hold one thing of two models, such as A_score
// and B_score or ok_A and ok_B; nil where there are none.
func findPair(t *table) (*pair, error) {
	for _, noun := range scoreNouns {
		if noun == "" {
			continue
		}
		for _, at := range []func(plain, noun string) bool{
			func(p, n string) bool { return strings.HasSuffix(p, "_"+n) },
			func(p, n string) bool { return strings.HasPrefix(p, n+"_") },
		} {
			models := modelsOf(t, noun, at)
			if len(models) > 2 {
				models = only(models, verified)
			}
			switch {
			case len(models) == 2:
				return &pair{noun, models}, nil
			case len(models) > 2:
				return nil, severalModels(models)
			}
		}
	}
	return nil, nil
}

func modelsOf(t *table, noun string, at func(plain, noun string) bool) []model {
	var out []model
	for _, c := range t.columns {
		p := plain(c)
		if len(p) != len(c) || len(c) <= len(noun)+1 || !at(p, noun) {
			continue
		}
		name := c[:len(c)-len(noun)-1]
		if strings.HasPrefix(p, noun+"_") && !strings.HasSuffix(p, "_"+noun) {
			name = c[len(noun)+1:]
		}
		out = append(out, model{name, c})
	}
	return out
}

// only keeps the models of one kind if there are just two of them.
func only(models []model, kind string) []model {
	var kept []model
	for _, m := range models {
		if strings.HasSuffix(plain(m.name), kind) {
			kept = append(kept, m)
		}
	}
	if len(kept) == 2 {
		return kept
	}
	return models
}

func severalModels(models []model) error {
	columns := make([]string, len(models))
	for i, m := range models {
		columns[i] = m.column
	}
	return fmt.Errorf("%w: scores of %d models (%s): say which are the edge's and the cloud's with --edge and --cloud",
		ErrFormat, len(models), shortList(columns))
}
