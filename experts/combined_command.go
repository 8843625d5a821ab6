package experts

import (
	"context"
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/internal/chart"
	"github.com/weirhq/weir/internal/cli"
)

const combinedUsage = "[--topics N] [--svg FILE]"

func combinedCommand() cli.Command {
	return cli.Command{Name: "combined", Short: "transfers that placement needs alone and together with routing", Usage: combinedUsage, Run: runCombined}
}

func runCombined(_ context.Context, env cli.Env, args []string) error {
	fs := pflag.NewFlagSet("experts combined", pflag.ContinueOnError)
	topics := fs.Int("topics", 5, "changes of topic, 1 to 100")
	svg := fs.String("svg", "", "also draw imbalance by transfers")
	if err := cli.ParseFlags(env, fs, combinedUsage, args); err != nil {
		return err
	}
	if fs.NArg() > 0 || *topics < 1 || *topics > 100 {
		return cli.Usagef("experts combined takes flags only, and --topics from 1 to 100")
	}
	c, err := Combine(*topics)
	if err != nil {
		return err
	}
	c.print(env.Stdout)
	if *svg == "" {
		return nil
	}
	return c.chart().WriteFile(filepath.Clean(*svg))
}

func (c Combination) print(w io.Writer) {
	alone, together := 0, 0
	for i, t := range c.Topics {
		fmt.Fprintf(w, "topic %d: imbalance %.3f; to %.2f: %d transfers alone, %d with routing (tau %.2f, %.1f %% of mass, %.0f %% rigid), then %.4f as routed\n",
			i, t.Before, combinedTarget, t.Alone, t.Together, t.Tau, 100*t.Lost, 100*t.Rigid, t.Routed)
		alone, together = alone+t.Alone, together+t.Together
	}
	fmt.Fprintf(w, "all: %d transfers alone, %d with routing\n\ntransfers   alone  with routing\n", alone, together)
	for k := range c.Alone {
		fmt.Fprintf(w, "%9d  %.4f        %.4f\n", k, c.Alone[k], c.Together[k])
	}
}

func (c Combination) chart() chart.Chart {
	curve := func(name string, y []float64) chart.Series {
		s := chart.Series{Name: name}
		for k, v := range y {
			s.Points = append(s.Points, chart.Point{X: float64(k), Y: v})
		}
		return s
	}
	return chart.Chart{Title: fmt.Sprintf("After a change of topic: 32 experts, 8 devices, %.0f %% of score mass", 100*combinedBudget),
		X: "transfers", Y: "imbalance of devices", Series: []chart.Series{curve("placement alone", c.Alone), curve("with routing", c.Together)}}
}
