package replay

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
)

// listed is a value of a list with one a token. Servers write null where they know
// none, as for the first token of an echoed prompt, and Python NaN: both are NaN
// here, never 0, which would be a token without doubt.
type listed float64

// UnmarshalJSON implements json.Unmarshaler. Bare numbers are quoted already.
func (l *listed) UnmarshalJSON(raw []byte) error {
	switch {
	case bytes.Equal(raw, []byte("null")), bytes.Equal(raw, []byte(`""`)):
		*l = listed(math.NaN())
		return nil
	case raw[0] != '"':
		return json.Unmarshal(raw, (*float64)(l))
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return err
	}
	v, err := strconv.ParseFloat(text, 64)
	*l = listed(v)
	return err
}
