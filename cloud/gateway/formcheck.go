package gateway

import (
	"github.com/weirhq/weir/cascade/validate"
	"github.com/weirhq/weir/cloud/cascading"
)

// maxChecked bounds what is kept of an answer to check its form, bytes. A longer
// one is not checked.
const maxChecked = 1 << 20

// formCheck collects an answer of one of the equals on its way to the client: one
// that breaks the form that its request asks for was a bad one, whoever says
// nothing about it. A nil check collects nothing.
type formCheck struct {
	form  cascading.Form
	text  []byte // of a stream's events, one behind the other
	ends  []int  // where in text each ends
	whole *validate.Answer
}

// beginCheck makes the check anew for an attempt, where there is something to
// check.
func (a *attempt) beginCheck() {
	if !a.choice.holds(a.pool) || a.stream.begun() {
		return
	}
	a.choice.check = nil
	if f := a.form(); f.Checked() {
		a.choice.check = &formCheck{form: f}
	}
}

// event takes an event of a stream.
func (c *choice) event(data []byte) {
	if c == nil || c.check == nil {
		return
	}
	k := c.check
	if len(k.text)+len(data) > maxChecked {
		c.check = nil
		return
	}
	k.text = append(k.text, data...)
	k.ends = append(k.ends, len(k.text))
}

// events are those of the stream.
func (c *formCheck) events() [][]byte {
	list, from := make([][]byte, len(c.ends)), 0
	for i, end := range c.ends {
		list[i], from = c.text[from:end], end
	}
	return list
}

// answer takes an answer that came at once.
func (c *choice) answer(data []byte) {
	if c == nil || c.check == nil {
		return
	}
	if a, err := cascading.Read(data); err == nil {
		said := a.Said()
		c.check.whole = &said
	}
}

// found says whether an answer of so many tokens was checked, and whether it broke
// its form. One that the client's own bound has cut is neither good nor bad.
func (c *formCheck) found(tokens int) (checked, broken bool) {
	if c == nil || c.whole == nil && len(c.ends) == 0 {
		return false, false
	}
	said := c.whole
	if said == nil {
		streamed := cascading.Said(c.events())
		said = &streamed
	}
	broken = c.form.Broken(*said, tokens)
	return broken || !said.Cut, broken
}
