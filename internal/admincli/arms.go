package admincli

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// arm is what the table shows of one.
type arm struct {
	Model, Class, Pool      string
	Mean, Low, High, Weight float64
	Labels                  int
	UpdatedAt               time.Time `json:"updated_at"`
}

func printArms(out io.Writer, answer []byte) error {
	var page struct{ Data []arm }
	if err := json.Unmarshal(answer, &page); err != nil {
		return fmt.Errorf("the answer is not JSON: %w", err)
	}
	if len(page.Data) == 0 {
		_, err := fmt.Fprintln(out, "no answer of a model with equal pools has been scored")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "MODEL\tCLASS\tPOOL\tQUALITY\t90 %\tLABELS\tUPDATED")
	for _, a := range page.Data {
		fmt.Fprintf(w, "%s\t%s\t%s\t%.3f\t%.3f-%.3f\t%d\t%s\n", oneLine(a.Model), oneLine(a.Class), oneLine(a.Pool), a.Mean, a.Low, a.High, a.Labels,
			a.UpdatedAt.UTC().Format(time.RFC3339))
	}
	return w.Flush()
}
