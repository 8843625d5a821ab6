package poolbench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/pki"
	"github.com/weirhq/weir/internal/proc"
	"github.com/weirhq/weir/internal/sse"
)

const modelName = "pools"

// process is a worker of its own, on one core where taskset is there.
type process struct {
	child *proc.Child
	addr  string
	log   bytes.Buffer
}

func begin(ctx context.Context, core int, role, path, lib, certs string) (*process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &process{addr: ln.Addr().String()}
	if err := ln.Close(); err != nil {
		return nil, err
	}
	args := []string{"worker", "--model", path, "--runner", "llama", "--served-model-name", modelName, "--role", role, "--listen", w.addr, "--threads", "1",
		"--lib", lib, "--ctx", "2100", "--max-seqs", "8", "--kv-tokens", "16800", "--tls-cert", filepath.Join(certs, pki.CertFile),
		"--tls-key", filepath.Join(certs, pki.KeyFile), "--tls-ca", filepath.Join(certs, pki.CAFile)}
	if pin, err := exec.LookPath("taskset"); err == nil {
		exe, args = pin, append([]string{"-c", strconv.Itoa(core), exe}, args...)
	}
	if w.child, err = proc.Start(proc.Spec{Name: role, Path: exe, Output: &w.log, Args: args}); err != nil {
		return nil, err
	}
	for limit := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if resp, err := http.Get("http://" + w.addr + "/health"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return w, nil
			}
		}
		if time.Now().After(limit) || ctx.Err() != nil {
			w.stop()
			return nil, fmt.Errorf("%s worker does not start: %s", role, w.log.String())
		}
	}
}

func (w *process) stop() { w.child.Stop(5 * time.Second) }

// post sends a completion and returns the response, whose status is 200.
func (w *process) post(ctx context.Context, operation string, body map[string]any) (*http.Response, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+w.addr+"/v1/completions", bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(contract.HeaderOperation, operation)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		resp.Body.Close()
		return nil, fmt.Errorf("worker answered %s: %s", resp.Status, text)
	}
	return resp, nil
}

// prefill asks for a prompt's KV and returns where it is.
func (w *process) prefill(ctx context.Context, operation string, body map[string]any) (json.RawMessage, error) {
	leg := map[string]any{"kv_transfer_params": map[string]any{"do_remote_decode": true, "do_remote_prefill": false}}
	for k, v := range body {
		leg[k] = v
	}
	leg["max_tokens"] = 1
	resp, err := w.post(ctx, operation, leg)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var a struct {
		KV json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil || a.KV == nil {
		return nil, fmt.Errorf("the prefill worker offers no KV: %w", err)
	}
	return a.KV, nil
}

// stream asks and tells when each chunk with a token came.
func (w *process) stream(ctx context.Context, operation string, body map[string]any, token func(time.Time)) error {
	body["stream"], body["return_token_ids"] = true, true
	resp, err := w.post(ctx, operation, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	r := sse.NewReader(resp.Body)
	for {
		data, err := r.Next()
		if err != nil {
			return err
		}
		if string(data) == sse.Done {
			return nil
		}
		if bytes.Contains(data, []byte(`"token_ids":[`)) && !bytes.Contains(data, []byte(`"token_ids":[]`)) {
			token(time.Now())
		}
	}
}
