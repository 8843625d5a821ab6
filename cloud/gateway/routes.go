package gateway

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/weirhq/weir/internal/openai"
)

// kind is which form of completion a route serves.
type kind uint8

const (
	kindChat kind = iota
	kindText
)

// endpoint is one row of the route table. A row either reaches a model, and
// then goes through admit, or it has a handler that cannot.
type endpoint struct {
	method, path string
	model        bool
	kind         kind
	handle       func(*exchange)
}

// endpoints is the whole API for applications.
func (g *Gateway) endpoints() []endpoint {
	return []endpoint{
		{method: http.MethodPost, path: "/v1/chat/completions", model: true, kind: kindChat},
		{method: http.MethodPost, path: "/v1/completions", model: true, kind: kindText},
		{method: http.MethodGet, path: "/v1/models", handle: g.listModels},
		{method: http.MethodGet, path: "/v1/models/:id", handle: g.getModel},
		{method: http.MethodGet, path: "/v1/usage", handle: g.showUsage},
		{method: http.MethodGet, path: "/v1/weir/requests/:id", handle: g.showExplanation},
		{method: http.MethodPut, path: "/v1/weir/requests/:id/feedback", handle: g.putFeedback},
	}
}

func (g *Gateway) routes() *gin.Engine {
	gin.SetMode(gin.ReleaseMode)
	e := gin.New()
	e.HandleMethodNotAllowed = true
	e.RedirectTrailingSlash = false
	e.RedirectFixedPath = false
	e.ForwardedByClientIP = false
	e.Use(g.begin, g.recoverPanics, g.boundInFlight)
	for _, p := range g.endpoints() {
		if p.model {
			e.Handle(p.method, p.path, g.identify, g.parse(p.kind), g.once, g.admit, g.complete)
		} else {
			e.Handle(p.method, p.path, g.identify, func(c *gin.Context) { p.handle(of(c)) })
		}
	}
	e.NoRoute(func(c *gin.Context) {
		of(c).refuse(&openai.Error{Status: http.StatusNotFound, Type: openai.TypeNotFound, Code: "unknown_url", NoRetry: true,
			Message: "there is nothing at this path: the API is under /v1"})
	})
	e.NoMethod(func(c *gin.Context) {
		of(c).refuse(&openai.Error{Status: http.StatusMethodNotAllowed, Type: openai.TypeInvalidRequest, Code: "method_not_allowed",
			NoRetry: true, Message: "this path does not take the method " + c.Request.Method})
	})
	if g.opts.Mount != nil {
		g.opts.Mount(e)
	}
	return e
}
