// Command fakereplica stands in for a vLLM server in the pool's tests.
//
// It answers the OpenAI, health and refit paths with made-up text; /fake/behave changes how it
// behaves while it runs and /fake/seen tells which requests it has seen.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// behaviour is what /fake/behave sets; the zero value is a healthy, fast replica.
type behaviour struct {
	LatencyMS   int    `json:"latency_ms"`   // before the first byte
	EventMS     int    `json:"event_ms"`     // between two events of a stream
	Events      int    `json:"events"`       // of a stream; 0 means 5
	Status      int    `json:"status"`       // answered instead of a completion
	StatusNext  int    `json:"status_next"`  // how many requests get Status; 0 means all
	Hang        bool   `json:"hang"`         // generation is never answered; /health is
	Unhealthy   bool   `json:"unhealthy"`    // /health answers 503
	DieOn       string `json:"die_on"`       // the process exits on a body that holds this
	CutAfter    int    `json:"cut_after"`    // the stream is cut after so many events
	CutWithFIN  bool   `json:"cut_with_fin"` // cut by FIN, else by RST
	ResetBefore bool   `json:"reset_before"` // RST before any header
	StreamBytes int64  `json:"stream_bytes"` // a stream of so many bytes instead of events
}

// seen is the record of the generation requests.
type seen struct {
	Count     int       `json:"count"`
	InFlight  int       `json:"in_flight"`
	Most      int       `json:"most_in_flight"`
	Cancelled []float64 `json:"cancelled"` // Unix seconds
	Sent      int64     `json:"sent_bytes"`
}

type replica struct {
	id    string
	mu    sync.Mutex
	how   behaviour
	seen  seen
	refit []string
}

func main() {
	id := flag.String("id", "r0", "name that answers carry")
	listen := flag.String("listen", "127.0.0.1:0", "address; port 0 takes a free one")
	flag.Parse()
	socket, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	// The first line tells whoever started this where it listens.
	fmt.Println(socket.Addr().(*net.TCPAddr).Port)
	server := &http.Server{Handler: &replica{id: *id}, MaxHeaderBytes: 1 << 20}
	log.Fatal(server.Serve(socket))
}

func (r *replica) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	w.Header().Set("X-Fake-Replica", r.id)
	switch {
	case strings.HasPrefix(q.URL.Path, "/fake/"):
		r.control(w, q)
	case q.URL.Path == "/health":
		r.health(w)
	case q.URL.Path == "/metrics":
		r.mu.Lock()
		count := r.seen.Count
		r.mu.Unlock()
		fmt.Fprintf(w, "vllm:generation_tokens_total{model_name=\"fake\"} %d\n", count)
	case q.URL.Path == "/v1/models":
		answer(w, 200, map[string]any{"object": "list", "data": []any{map[string]any{"id": "fake", "object": "model"}}})
	case q.URL.Path == "/v1/completions" || q.URL.Path == "/v1/chat/completions":
		r.generate(w, q)
	case refitPath(q.URL.Path):
		r.mu.Lock()
		r.refit = append(r.refit, q.URL.Path)
		status := r.how.Status
		r.mu.Unlock()
		if status == 0 {
			status = 200
		}
		answer(w, status, map[string]any{"replica": r.id, "path": q.URL.Path})
	default:
		r.echo(w, q)
	}
}

func refitPath(path string) bool {
	switch path {
	case "/pause", "/resume", "/is_paused", "/init_weights_update_group", "/collective_rpc",
		"/reset_prefix_cache", "/sleep", "/wake_up":
		return true
	}
	return strings.HasPrefix(path, "/update_weights")
}

func (r *replica) control(w http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch q.URL.Path {
	case "/fake/behave":
		var how behaviour
		decoder := json.NewDecoder(q.Body)
		// A misspelt field would leave the replica healthy and its test without meaning.
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&how); err != nil {
			http.Error(w, err.Error(), 400)
			return
		}
		r.how = how
		answer(w, 200, how)
	case "/fake/seen":
		answer(w, 200, map[string]any{"id": r.id, "requests": r.seen, "refit": r.refit})
	case "/fake/forget":
		r.seen = seen{InFlight: r.seen.InFlight, Most: r.seen.InFlight}
		r.refit = nil
		answer(w, 200, nil)
	default:
		http.NotFound(w, q)
	}
}

func (r *replica) health(w http.ResponseWriter) {
	r.mu.Lock()
	sick := r.how.Unhealthy
	r.mu.Unlock()
	if sick {
		w.WriteHeader(503)
	}
}

func (r *replica) echo(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	if err != nil {
		return
	}
	sum := sha256.Sum256(body)
	answer(w, 200, map[string]any{
		"replica": r.id, "method": q.Method, "path": q.URL.EscapedPath(), "query": q.URL.RawQuery,
		"host": q.Host, "headers": q.Header, "bytes": len(body), "sha256": hex.EncodeToString(sum[:]),
	})
}

// begin counts a request and returns how it is to be treated.
func (r *replica) begin() behaviour {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen.Count++
	r.seen.InFlight++
	r.seen.Most = max(r.seen.Most, r.seen.InFlight)
	how := r.how
	if r.how.StatusNext > 0 {
		r.how.StatusNext--
		if r.how.StatusNext == 0 {
			r.how.Status = 0
		}
	}
	return how
}

func (r *replica) end(q *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen.InFlight--
	if q.Context().Err() != nil {
		r.seen.Cancelled = append(r.seen.Cancelled, float64(time.Now().UnixMicro())/1e6)
	}
}

func (r *replica) generate(w http.ResponseWriter, q *http.Request) {
	how := r.begin()
	defer r.end(q)
	body, err := io.ReadAll(q.Body)
	if err != nil {
		return
	}
	if how.DieOn != "" && bytes.Contains(body, []byte(how.DieOn)) {
		os.Exit(1)
	}
	if how.ResetBefore {
		cut(w, false)
		return
	}
	if how.Hang {
		<-q.Context().Done()
		return
	}
	if !pause(q, how.LatencyMS) {
		return
	}
	if how.Status != 0 {
		answer(w, how.Status, map[string]any{"error": map[string]any{"message": "fake failure", "replica": r.id}})
		return
	}
	var request struct {
		Stream bool `json:"stream"`
	}
	if json.Unmarshal(body, &request) != nil {
		answer(w, 400, map[string]any{"error": map[string]any{"message": "no JSON"}})
		return
	}
	if request.Stream {
		r.stream(w, q, how)
		return
	}
	answer(w, 200, map[string]any{
		"id": "cmpl-" + r.id, "object": "chat.completion", "model": "fake",
		"choices": []any{map[string]any{
			"index": 0, "finish_reason": "stop", "text": "ok",
			"message": map[string]any{"role": "assistant", "content": "ok"},
		}},
	})
}

func (r *replica) stream(w http.ResponseWriter, q *http.Request, how behaviour) {
	w.Header().Set("Content-Type", "text/event-stream")
	event := []byte("data: {\"choices\":[{\"delta\":{\"content\":\"ok\"},\"text\":\"ok\"}]}\n\n")
	events := how.Events
	if events == 0 {
		events = 5
	}
	if how.StreamBytes > 0 {
		event = bytes.Repeat([]byte("x"), 64<<10)
		events = int((how.StreamBytes + int64(len(event)) - 1) / int64(len(event)))
	}
	control := http.NewResponseController(w)
	for n := range events {
		if how.CutAfter > 0 && n == how.CutAfter {
			cut(w, how.CutWithFIN)
			return
		}
		if n > 0 && !pause(q, how.EventMS) {
			return
		}
		if _, err := w.Write(event); err != nil || control.Flush() != nil {
			return
		}
		r.mu.Lock()
		r.seen.Sent += int64(len(event))
		r.mu.Unlock()
	}
	if how.StreamBytes == 0 {
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	}
}

// pause waits and says whether the client is still there.
func pause(q *http.Request, milliseconds int) bool {
	if milliseconds <= 0 {
		return q.Context().Err() == nil
	}
	select {
	case <-time.After(time.Duration(milliseconds) * time.Millisecond):
		return true
	case <-q.Context().Done():
		return false
	}
}

// cut ends the connection without the end of the answer: by FIN, or by RST.
func cut(w http.ResponseWriter, fin bool) {
	connection, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	if tcp, ok := connection.(*net.TCPConn); ok && !fin {
		_ = tcp.SetLinger(0)
	}
	_ = connection.Close()
}

func answer(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value)
}
