package gateway

import (
	"net/http"

	"github.com/weirhq/weir/internal/openai"
)

// answer sends a JSON document with status 200.
func (x *exchange) answer(v any) {
	x.wrote = true
	h := x.gin.Writer.Header()
	h.Set("Content-Type", "application/json")
	x.gin.Writer.WriteHeader(http.StatusOK)
	_, _ = x.gin.Writer.Write(mustJSON(v)) // the client may be gone
}

func (g *Gateway) modelEntry(name string) openai.Model {
	_, context := g.opts.Pool.Serves(g.opts.Models[name].Pool)
	return openai.Model{ID: name, Object: openai.ObjectModel, Created: modelsCreated, OwnedBy: "weir", MaxModelLen: context}
}

// modelsCreated is a fixed date, because clients only want the member there.
const modelsCreated = 1767225600 // 2026-01-01

func (g *Gateway) listModels(x *exchange) {
	list := openai.ModelList{Object: openai.ObjectList, Data: []openai.Model{}}
	for _, name := range g.models {
		if x.who.MayUseModel(name) {
			list.Data = append(list.Data, g.modelEntry(name))
		}
	}
	x.answer(list)
}

func (g *Gateway) getModel(x *exchange) {
	name := x.gin.Param("id")
	if _, ok := g.opts.Models[name]; !ok || !x.who.MayUseModel(name) {
		x.refuse(openai.ModelNotFound(name))
		return
	}
	x.answer(g.modelEntry(name))
}
