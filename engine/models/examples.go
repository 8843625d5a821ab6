package models

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
)

//go:embed calibration.jsonl
var calibration []byte

// Example is a prompt with its one right answer, compared byte by byte.
type Example struct {
	Task   string `json:"task"` // "T1" to "T7": see MODEL_CARD.md
	Sub    string `json:"sub"`  // kind within the task, e.g. "add3"
	Prompt string `json:"prompt"`
	Answer string `json:"answer"`
}

// Calibration returns 3,833 examples for fitting thresholds. None of their
// prompts stands in the held-out set.
func Calibration() ([]Example, error) { return ParseExamples(calibration) }

// ParseExamples reads one example per line.
func ParseExamples(jsonl []byte) ([]Example, error) {
	var out []Example
	for i, line := range bytes.Split(bytes.TrimSpace(jsonl), []byte("\n")) {
		var e Example
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("examples: line %d: %w", i+1, err)
		}
		out = append(out, e)
	}
	return out, nil
}
