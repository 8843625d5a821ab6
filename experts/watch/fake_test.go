package watch

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// fakeSGLang speaks the endpoints of SGLang that a watcher uses: the recorder,
// metrics and health. A restart makes it unhealthy for some probes and loads
// its plan file.
type fakeSGLang struct {
	dir, key string

	mu        sync.Mutex
	counts    [][]int32 // of one recording
	recording bool
	dumps     int
	restarts  int
	sick      int // health probes that still fail
	running   map[string][][]int
	noRecord  bool // launched without recorder mode
	noDump    bool
	refuse    int // restarts to refuse
	log       *[]string
	name      string
}

// newFake starts a fake replica; name tells it apart in log.
func newFake(t *testing.T, name string, counts [][]int32, log *[]string) (*fakeSGLang, Replica) {
	f := &fakeSGLang{dir: t.TempDir(), counts: counts, name: name, log: log}
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return f, Replica{URL: s.URL, Dir: f.dir}
}

func (f *fakeSGLang) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.key != "" && r.URL.Path != "/restart" && r.Header.Get("Authorization") != "Bearer "+f.key {
		http.Error(w, "admin key", http.StatusUnauthorized)
		return
	}
	switch r.URL.Path {
	case "/start_expert_distribution_record", "/stop_expert_distribution_record":
		if f.noRecord {
			http.Error(w, "recorder is off", http.StatusBadRequest)
			return
		}
		f.recording = r.URL.Path[1:6] == "start"
		fmt.Fprintln(w, "ok")
	case "/dump_expert_distribution_record":
		if f.recording {
			http.Error(w, "dump while recording", http.StatusConflict)
			return
		}
		f.dumps++
		if !f.noDump {
			name := fmt.Sprintf("expert_distribution_recorder_%d.pt", f.dumps)
			_ = os.WriteFile(filepath.Join(f.dir, name), recording(f.counts), 0o600)
		}
		fmt.Fprintln(w, "ok")
	case "/metrics":
		fmt.Fprint(w, "# HELP sglang:eplb_balancedness x\nsglang:eplb_balancedness{forward_mode=\"decode\"} 0.5\n")
	case "/health":
		if f.sick > 0 {
			f.sick--
			http.Error(w, "starting", http.StatusServiceUnavailable)
		}
	case "/restart":
		f.restart(w, r.URL.Query().Get("plan"))
	default:
		http.NotFound(w, r)
	}
}

// restart is what the hook of the tests asks for.
func (f *fakeSGLang) restart(w http.ResponseWriter, planFile string) {
	*f.log = append(*f.log, f.name)
	if f.refuse > 0 {
		f.refuse--
		http.Error(w, "will not restart", http.StatusInternalServerError)
		return
	}
	f.running = nil
	if data, err := os.ReadFile(planFile); err == nil {
		if err := json.Unmarshal(data, &f.running); err != nil || len(f.running) != 1 {
			http.Error(w, "bad plan file", http.StatusInternalServerError)
			return
		}
	}
	f.restarts, f.sick = f.restarts+1, 3
}

// recording is a dump of mode stat, as torch writes it: one step of int32.
func recording(counts [][]int32) []byte {
	rows, cols := len(counts), len(counts[0])
	var body []byte
	for _, row := range counts {
		for _, v := range row {
			body = binary.LittleEndian.AppendUint32(body, uint32(v))
		}
	}
	num := func(n int) string { return "J" + string(binary.LittleEndian.AppendUint32(nil, uint32(n))) }
	str := func(s string) string { return "X" + string(binary.LittleEndian.AppendUint32(nil, uint32(len(s)))) + s }
	pickle := "\x80\x02}(" + str("rank") + "K\x00" + str("logical_count") + "ctorch._utils\n_rebuild_tensor_v2\n((" +
		str("storage") + "ctorch\nIntStorage\n" + str("0") + str("cpu") + num(rows*cols) + "tQK\x00(" + num(1) + num(rows) + num(cols) + "t(" +
		num(rows*cols) + num(cols) + num(1) + "t\x89ccollections\nOrderedDict\n)Rt" + "Ru."
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for name, data := range map[string][]byte{"r/data.pkl": []byte(pickle), "r/data/0": body} {
		w, _ := z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
		_, _ = w.Write(data)
	}
	_ = z.Close()
	return b.Bytes()
}
