// Package openapi makes an OpenAPI 3.1 document out of a table of routes and
// the Go types of their bodies, so that it cannot differ from the code.
//
// Struct tags add what types do not say: doc, enum (comma-separated), example,
// format, and need:"true" for members that a request must have.
package openapi

import (
	"net/http"
	"reflect"
	"strconv"
	"strings"
)

// Param is a parameter of a path, a query or a header.
type Param struct {
	Name     string
	In       string // path, query or header
	Doc      string
	Type     string // string (default), integer or boolean
	Format   string
	Enum     []string
	Required bool
}

// Operation is one method of one path.
type Operation struct {
	ID           string
	Method, Path string // with {name} for parameters
	Summary      string
	Tag          string
	Roles        []string // that may call it
	Params       []Param
	In           any // a value of the request body's type; nil: none
	Out          any // of the answer's; nil: none
	Status       int
	OutType      string // media type of an answer that is not JSON
}

// Document is an OpenAPI document. Marshalling it is deterministic.
type Document struct {
	OpenAPI    string                       `json:"openapi"`
	Info       Info                         `json:"info"`
	Paths      map[string]map[string]PathOp `json:"paths"`
	Components map[string]map[string]any    `json:"components"`
	Security   []map[string][]string        `json:"security"`
	schemas    map[string]any               // of Components
	types      map[reflect.Type]string      // names of components
}

// Info is the document's head.
type Info struct {
	Title       string `json:"title"`
	Version     string `json:"version"`
	Description string `json:"description,omitempty"`
}

// PathOp is one operation of a path.
type PathOp struct {
	OperationID string          `json:"operationId"`
	Summary     string          `json:"summary"`
	Description string          `json:"description,omitempty"`
	Tags        []string        `json:"tags,omitempty"`
	Parameters  []Parameter     `json:"parameters,omitempty"`
	RequestBody *Body           `json:"requestBody,omitempty"`
	Responses   map[string]Body `json:"responses"`
}

// Parameter is a Param as the document shows it.
type Parameter struct {
	Name        string  `json:"name"`
	In          string  `json:"in"`
	Description string  `json:"description,omitempty"`
	Required    bool    `json:"required,omitempty"`
	Schema      *Schema `json:"schema"`
}

// Body is a request's or a response's content.
type Body struct {
	Description string           `json:"description,omitempty"`
	Required    bool             `json:"required,omitempty"`
	Content     map[string]Media `json:"content,omitempty"`
}

// Media is a body in one media type.
type Media struct {
	Schema *Schema `json:"schema"`
}

// Security is the name of the one security scheme.
const Security = "adminToken"

// Build makes the document. errorBody is a value of the type of error answers.
func Build(info Info, ops []Operation, errorBody any) *Document {
	d := &Document{OpenAPI: "3.1.0", Info: info, Paths: map[string]map[string]PathOp{}, schemas: map[string]any{}, types: map[reflect.Type]string{}}
	d.Components = map[string]map[string]any{
		"schemas":         d.schemas,
		"securitySchemes": {Security: map[string]string{"type": "http", "scheme": "bearer", "description": "an admin token, wa_<id>_<secret>"}},
	}
	d.Security = []map[string][]string{{Security: {}}}
	fails := Media{d.output(reflect.TypeOf(errorBody))}
	for _, op := range ops {
		if d.Paths[op.Path] == nil {
			d.Paths[op.Path] = map[string]PathOp{}
		}
		d.Paths[op.Path][strings.ToLower(op.Method)] = d.operation(op, fails)
	}
	return d
}

func (d *Document) operation(op Operation, fails Media) PathOp {
	p := PathOp{OperationID: op.ID, Summary: op.Summary, Responses: map[string]Body{}}
	if op.Tag != "" {
		p.Tags = []string{op.Tag}
	}
	if len(op.Roles) > 0 {
		p.Description = "Roles: " + strings.Join(op.Roles, ", ") + "."
	}
	for _, q := range op.Params {
		p.Parameters = append(p.Parameters, q.parameter())
	}
	if op.In != nil {
		p.RequestBody = &Body{Required: true, Content: map[string]Media{"application/json": {d.input(reflect.TypeOf(op.In))}}}
	}
	done := Body{Description: http.StatusText(op.Status)}
	switch {
	case op.OutType != "":
		done.Content = map[string]Media{op.OutType: {&Schema{Type: "string"}}}
	case op.Out != nil:
		done.Content = map[string]Media{"application/json": {d.output(reflect.TypeOf(op.Out))}}
	}
	p.Responses[strconv.Itoa(op.Status)] = done
	p.Responses["default"] = Body{Description: "error", Content: map[string]Media{"application/json": fails}}
	return p
}

func (q Param) parameter() Parameter {
	s := &Schema{Type: "string", Format: q.Format}
	if q.Type != "" {
		s.Type = q.Type
	}
	for _, e := range q.Enum {
		s.Enum = append(s.Enum, e)
	}
	return Parameter{Name: q.Name, In: q.In, Description: q.Doc, Required: q.Required || q.In == "path", Schema: s}
}
