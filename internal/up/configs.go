package up

import (
	"fmt"
	"os"
	"runtime"

	"go.yaml.in/yaml/v3"

	"github.com/weirhq/weir/engine/models"
	"github.com/weirhq/weir/internal/pki"
)

// Names of the model pools and of the two workers that weir up starts.
const (
	edgeModel   = "hub-edge"
	cloudModel  = "hub-cloud"
	prefillName = "prefill-1"
	decodeName  = "decode-1"
	runners     = 3 // two cloud workers and the edge's own
)

// maxSeqs times the bundled model's context is the worker's default KV cache,
// so that every sequence gets a buffer of its own: twice as fast as a shared
// one with many sequences, and free of their influence.
const maxSeqs = 16

// threads is what each runner gets: ggml's threads spin at barriers, so
// runners must not compete for cores.
func threads() int { return max(1, runtime.NumCPU()/runners) }

type section map[string]any

// writeConfigs writes the children's configuration files.
func (l layout) writeConfigs(libDir, runner string) error {
	files := map[string]section{
		"cloud": {"cloud": section{
			"listen": l.addr(portCloud), "tls_listen": l.addr(portCloudTLS), "ops_listen": l.addr(portCloudOps),
			"secrets_dir": l.path("secrets"), "data_dir": l.path("cloud"), "drain": drain,
			"instances": []section{
				{"name": prefillName, "url": l.url(portPrefill), "role": "prefill", "model": cloudModel},
				{"name": decodeName, "url": l.url(portDecode), "role": "decode", "model": cloudModel},
			},
			"models": section{
				cloudModel: section{"pool": cloudModel, "continues": true, "context": models.Context},
				"auto":     section{"pool": cloudModel, "continues": true, "context": models.Context},
			},
		}},
		prefillName: l.worker(prefillName, "prefill", portPrefill, libDir, runner),
		decodeName:  l.worker(decodeName, "decode", portDecode, libDir, runner),
		"edge": {"edge": section{
			"listen": l.addr(portEdge), "ops_listen": l.addr(portEdgeOps), "data_dir": l.path("edge"),
			"cloud_url": "https://" + l.addr(portCloudTLS), "join_token_file": l.joinToken(),
			"model": edgeModel, "worker_listen": l.addr(portEdgeWorker), "worker_threads": threads(), "lib": libDir, "drain": "1s",
		}},
	}
	for child, content := range files {
		data, err := yaml.Marshal(content)
		if err != nil {
			return fmt.Errorf("configuration of %s: %w", child, err)
		}
		if err := os.WriteFile(l.config(child), data, 0o600); err != nil {
			return fmt.Errorf("configuration of %s: %w", child, err)
		}
	}
	return nil
}

func (l layout) joinToken() string { return l.path("edge", "join-token") }

// worker configures a cloud worker. Both get one runner, because runners do not
// read each other's KV.
func (l layout) worker(name, role string, port int, libDir, runner string) section {
	certs := l.path("secrets", name)
	return section{"worker": section{
		"name": name, "model": cloudModel, "role": role, "runner": runner, "max_seqs": maxSeqs, "listen": l.addr(port), "threads": threads(), "lib": libDir, "drain": drain,
		"tls_cert": certs + "/" + pki.CertFile, "tls_key": certs + "/" + pki.KeyFile, "tls_ca": certs + "/" + pki.CAFile,
	}}
}

// issueCertificates gives each cloud worker a certificate for its KV port. The
// authority is made on the first start.
func (l layout) issueCertificates() error {
	authority, err := pki.OpenAuthority(l.path("secrets"))
	if err != nil {
		return err
	}
	for _, name := range []string{prefillName, decodeName} {
		spec := pki.Spec{Peer: pki.Peer{Role: pki.RoleWorker, Name: name}, Hosts: pki.LoopbackHosts()}
		if err := authority.IssueTo(l.path("secrets", name), spec); err != nil {
			return fmt.Errorf("certificate of %s: %w", name, err)
		}
	}
	return nil
}
