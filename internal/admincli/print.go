package admincli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/weirhq/weir/internal/cli"
)

func printJSON(w io.Writer, answer []byte) error {
	var b bytes.Buffer
	if err := json.Indent(&b, answer, "", "  "); err != nil {
		return fmt.Errorf("the answer is not JSON: %w", err)
	}
	b.WriteByte('\n')
	_, err := b.WriteTo(w)
	return err
}

// printTable prints a list as a table, and one object a member per line.
func printTable(env cli.Env, columns []string, answer []byte) error {
	var page struct {
		Data *[]map[string]any `json:"data"`
		Next string            `json:"next"`
	}
	if err := decode(answer, &page); err != nil {
		return err
	}
	if page.Data == nil {
		var object map[string]any
		if err := decode(answer, &object); err != nil {
			return err
		}
		return printObject(env.Stdout, columns, object)
	}
	if err := printRows(env.Stdout, columns, *page.Data); err != nil {
		return err
	}
	if page.Next != "" {
		fmt.Fprintf(env.Stderr, "there are more: --after %s\n", page.Next)
	}
	return nil
}

// decode keeps numbers as they were written.
func decode(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("the answer is not JSON: %w", err)
	}
	return nil
}

// printRows prints the columns that any row has.
func printRows(out io.Writer, columns []string, rows []map[string]any) error {
	shown := slices.DeleteFunc(slices.Clone(columns), func(c string) bool {
		return !slices.ContainsFunc(rows, func(r map[string]any) bool { return cellOf(r[c]) != "" })
	})
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.ToUpper(strings.Join(shown, "\t")))
	for _, r := range rows {
		cells := make([]string, len(shown))
		for i, c := range shown {
			if cells[i] = cellOf(r[c]); cells[i] == "" {
				cells[i] = "-"
			}
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	return w.Flush()
}

func printObject(out io.Writer, columns []string, object map[string]any) error {
	var order []string
	for _, c := range columns {
		if _, ok := object[c]; ok {
			order = append(order, c)
		}
	}
	var rest []string
	for name := range object {
		if !slices.Contains(order, name) {
			rest = append(rest, name)
		}
	}
	slices.Sort(rest)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, name := range append(order, rest...) {
		fmt.Fprintf(w, "%s\t%s\n", name, cellOf(object[name]))
	}
	return w.Flush()
}

func cellOf(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return oneLine(v)
	case []any:
		parts := make([]string, len(v))
		for i := range v {
			parts[i] = cellOf(v[i])
		}
		return strings.Join(parts, ",")
	case map[string]any:
		b, err := json.Marshal(v)
		if err != nil {
			return "?"
		}
		return string(b)
	}
	return fmt.Sprint(v)
}

// oneLine keeps foreign text from moving the terminal's cursor.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}
