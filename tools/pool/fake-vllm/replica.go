package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// behaviour is what the control path sets; the zero value is a healthy replica that takes no time.
type behaviour struct {
	FirstMS     int    `json:"first_ms"`     // before the first token
	TokenMS     int    `json:"token_ms"`     // between two tokens
	Tokens      int    `json:"tokens"`       // of an answer that names no max_tokens; 0 means 5
	Hang        bool   `json:"hang"`         // no token is generated; /health is well
	Status      int    `json:"status"`       // answered to every generation
	Everywhere  int    `json:"everywhere"`   // answered to everything, /health too
	Unhealthy   bool   `json:"unhealthy"`    // /health answers 503
	Poison      string `json:"poison"`       // 500 for a body that holds this
	Reset       bool   `json:"reset"`        // RST before any header
	CutAfter    int    `json:"cut_after"`    // the answer is cut after so many tokens
	CutByFIN    bool   `json:"cut_by_fin"`   // cut by FIN, else by RST
	StreamBytes int64  `json:"stream_bytes"` // a stream of so many bytes instead of events
	RefitStatus int    `json:"refit_status"` // answered to the refit paths
	RefitMS     int    `json:"refit_ms"`     // before a refit path is answered
	Remember    bool   `json:"remember"`     // hash every body
}

// seen is the record of the generation requests.
type seen struct {
	Count        int                 `json:"count"`
	Chats        int                 `json:"chats"` // of these; a canary is none
	InFlight     int                 `json:"in_flight"`
	MostInFlight int                 `json:"most_in_flight"`
	Cancelled    []float64           `json:"cancelled"` // when it was seen, Unix seconds
	SentBytes    int64               `json:"sent_bytes"`
	LastBytes    int                 `json:"last_bytes"`  // of the last body
	LastSHA256   string              `json:"last_sha256"` // where `remember` is set
	LastHeaders  map[string][]string `json:"last_headers"`
	LastTarget   string              `json:"last_target"`
	Refit        []string            `json:"refit"` // targets of the refit paths, in order
}

type replica struct {
	id string

	mu      sync.Mutex
	how     behaviour
	changed chan struct{} // closed when `how` or `paused` changes
	paused  bool
	asleep  bool
	seen    seen
	host    string
	port    int
	life    *life // nil: dead

	generated atomic.Int64
	prompted  atomic.Int64
	running   atomic.Int64
}

func newReplica(id, host string) *replica {
	return &replica{id: id, host: host, changed: make(chan struct{})}
}

func (r *replica) listening() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.port
}

func (r *replica) launch(port int) error {
	socket, err := net.Listen("tcp", fmt.Sprintf("%s:%d", r.host, port))
	if err != nil {
		return err
	}
	life := &life{server: &http.Server{Handler: r, MaxHeaderBytes: 1 << 20}}
	life.server.ConnState = life.note
	r.mu.Lock()
	defer r.mu.Unlock()
	r.how, r.paused, r.asleep = behaviour{}, false, false
	r.seen = seen{}
	r.generated.Store(0)
	r.prompted.Store(0)
	r.port, r.life = portOf(socket), life
	go func() { _ = life.server.Serve(socket) }()
	return nil
}

// life is what a replica has between a launch and its death.
type life struct {
	server      *http.Server
	dead        atomic.Bool
	connections sync.Map
}

func (l *life) note(connection net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		l.connections.Store(connection, true)
		if l.dead.Load() {
			_ = connection.Close()
		}
	case http.StateClosed, http.StateHijacked:
		l.connections.Delete(connection)
	}
}

// end closes everything, by RST as the kernel does for a killed process with unread bytes.
func (l *life) end() {
	l.dead.Store(true)
	l.connections.Range(func(key, _ any) bool {
		if tcp, ok := key.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		return true
	})
	_ = l.server.Close()
}

func (r *replica) die() {
	r.mu.Lock()
	ending := r.life
	r.life, r.port = nil, 0
	r.mu.Unlock()
	if ending != nil {
		ending.end()
	}
}

func (r *replica) behave(how behaviour) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.how = how
	r.wake()
}

// wake lets all that wait look again; the lock is held.
func (r *replica) wake() {
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *replica) report() map[string]any {
	r.mu.Lock()
	defer r.mu.Unlock()
	copied := r.seen
	copied.Cancelled = append([]float64{}, r.seen.Cancelled...)
	copied.Refit = append([]string{}, r.seen.Refit...)
	return map[string]any{
		"id": r.id, "port": r.port, "requests": copied, "paused": r.paused, "asleep": r.asleep,
		"generation_tokens": r.generated.Load(), "prompt_tokens": r.prompted.Load(),
	}
}

func (r *replica) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = seen{InFlight: r.seen.InFlight, MostInFlight: r.seen.InFlight}
}

func (r *replica) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	how := r.how
	r.mu.Unlock()
	path := q.URL.Path
	switch {
	case how.Everywhere != 0:
		_, _ = io.Copy(io.Discard, q.Body)
		r.refuse(w, how.Everywhere, "sick")
	case path == "/v1/completions" || path == "/v1/chat/completions":
		r.generate(w, q)
	case path == "/health":
		if how.Unhealthy {
			w.WriteHeader(503)
		}
	case path == "/metrics":
		r.metrics(w)
	case path == "/v1/models":
		answer(w, 200, map[string]any{
			"object": "list", "data": []any{map[string]any{"id": "fake", "object": "model"}},
		})
	case refitPath(path):
		r.refit(w, q)
	default:
		r.echo(w, q)
	}
}

func (r *replica) refuse(w http.ResponseWriter, status int, message string) {
	w.Header().Set("X-Fake-Replica", r.id)
	answer(w, status, map[string]any{"error": map[string]any{"message": message, "replica": r.id}})
}

func (r *replica) metrics(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	for _, one := range []struct {
		name, kind string
		value      int64
	}{
		{"generation_tokens_total", "counter", r.generated.Load()},
		{"prompt_tokens_total", "counter", r.prompted.Load()},
		{"num_requests_running", "gauge", r.running.Load()},
	} {
		_, _ = fmt.Fprintf(w, "# TYPE vllm:%s %s\nvllm:%s{engine=\"0\",model_name=\"fake\"} %d.0\n",
			one.name, one.kind, one.name, one.value)
	}
}

func refitPath(path string) bool {
	switch path {
	case "/pause", "/resume", "/is_paused", "/init_weights_update_group", "/collective_rpc",
		"/reset_prefix_cache", "/sleep", "/wake_up", "/is_sleeping":
		return true
	}
	return strings.HasPrefix(path, "/update_weights")
}

func (r *replica) refit(w http.ResponseWriter, q *http.Request) {
	_, _ = io.Copy(io.Discard, q.Body)
	r.mu.Lock()
	how := r.how
	r.seen.Refit = append(r.seen.Refit, q.URL.RequestURI())
	r.mu.Unlock()
	if how.RefitMS > 0 && !wait(q.Context(), how.RefitMS) {
		return
	}
	if how.RefitStatus != 0 {
		r.refuse(w, how.RefitStatus, "no refit")
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch q.URL.Path {
	case "/pause":
		r.paused = true
	case "/resume":
		r.paused = false
	case "/sleep":
		r.asleep = true
	case "/wake_up":
		r.asleep = false
	}
	r.wake()
	answer(w, 200, map[string]any{
		"replica": r.id, "is_paused": r.paused, "is_sleeping": r.asleep,
	})
}

func (r *replica) echo(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	if err != nil {
		return
	}
	sum := sha256.Sum256(body)
	w.Header().Set("X-Fake-Replica", r.id)
	answer(w, 200, map[string]any{
		"replica": r.id, "method": q.Method, "path": q.URL.EscapedPath(), "query": q.URL.RawQuery,
		"host": q.Host, "headers": q.Header, "bytes": len(body),
		"sha256": hex.EncodeToString(sum[:]),
	})
}

// begin counts a request and returns how it is to be treated, and in which life.
func (r *replica) begin(q *http.Request, body []byte) (behaviour, *life) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen.Count++
	if q.URL.Path == "/v1/chat/completions" {
		r.seen.Chats++
	}
	r.seen.InFlight++
	r.seen.MostInFlight = max(r.seen.MostInFlight, r.seen.InFlight)
	r.seen.LastBytes, r.seen.LastHeaders = len(body), q.Header
	r.seen.LastTarget = q.URL.RequestURI()
	if r.how.Remember {
		sum := sha256.Sum256(body)
		r.seen.LastSHA256 = hex.EncodeToString(sum[:])
	}
	return r.how, r.life
}

func (r *replica) end(q *http.Request, of *life) {
	gone := q.Context().Err() != nil
	now := float64(time.Now().UnixMicro()) / 1e6
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.life != of {
		return
	}
	r.seen.InFlight--
	if gone {
		r.seen.Cancelled = append(r.seen.Cancelled, now)
	}
}

// generation is one request under way.
type generation struct {
	Stream    bool `json:"stream"`
	MaxTokens int  `json:"max_tokens"`
	// As newer clients say it.
	MaxCompletionTokens int `json:"max_completion_tokens"`
}

var bodies = sync.Pool{New: func() any { return new(bytes.Buffer) }}

func (r *replica) generate(w http.ResponseWriter, q *http.Request) {
	buffer := bodies.Get().(*bytes.Buffer)
	defer bodies.Put(buffer)
	buffer.Reset()
	if _, err := buffer.ReadFrom(q.Body); err != nil {
		return
	}
	body := buffer.Bytes()
	how, of := r.begin(q, body)
	defer r.end(q, of)
	r.running.Add(1)
	defer r.running.Add(-1)
	switch {
	case how.Reset:
		cut(w, false)
		return
	case how.Status != 0:
		r.refuse(w, how.Status, "fake failure")
		return
	case how.Poison != "" && bytes.Contains(body, []byte(how.Poison)):
		r.refuse(w, 500, "EngineCore encountered an issue")
		return
	}
	wanted := parse(body)
	if wanted == nil {
		r.refuse(w, 400, "the body is no JSON")
		return
	}
	tokens := max(wanted.MaxTokens, wanted.MaxCompletionTokens)
	if tokens == 0 {
		tokens = how.Tokens
	}
	if tokens == 0 {
		tokens = 5
	}
	if wanted.Stream {
		r.stream(w, q, tokens)
		return
	}
	for n := range tokens {
		now, ok := r.token(q.Context(), n, len(body))
		if !ok {
			return
		}
		if now.CutAfter > 0 && n+1 == now.CutAfter {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, `{"id": "cut`)
			_ = http.NewResponseController(w).Flush()
			cut(w, now.CutByFIN)
			return
		}
	}
	reply := []byte(`{"id":"cmpl-` + r.id + `","object":"chat.completion","model":"fake","choices":[` +
		`{"index":0,"finish_reason":"stop","text":"ok","message":{"role":"assistant","content":"ok"}}],` +
		`"usage":{"completion_tokens":` + strconv.Itoa(tokens) + `}}`)
	header := w.Header()
	header["Content-Type"] = jsonType
	header["X-Fake-Replica"] = []string{r.id}
	header["Content-Length"] = []string{strconv.Itoa(len(reply))}
	_, _ = w.Write(reply)
}

var jsonType = []string{"application/json"}

// parse looks into small bodies only as far as JSON asks; a large one costs the tool more than
// the balancer that is measured.
func parse(body []byte) *generation {
	var wanted generation
	const small = 4096
	if len(body) > small {
		// Load has its fields before the messages, and then nothing that looks like them.
		head := body[:small]
		if end := bytes.Index(head, []byte(`,"messages":`)); end > 0 {
			body = append(append([]byte{}, head[:end]...), '}')
		}
	}
	if json.Unmarshal(body, &wanted) != nil {
		return nil
	}
	return &wanted
}

// token waits for one token and counts it, once it is there. False: the client has gone.
func (r *replica) token(gone context.Context, n, promptBytes int) (behaviour, bool) {
	r.mu.Lock()
	how, held, changed := r.how, r.how.Hang || r.paused || r.asleep, r.changed
	r.mu.Unlock()
	for held {
		select {
		case <-gone.Done():
			return how, false
		case <-changed:
		}
		r.mu.Lock()
		how, held, changed = r.how, r.how.Hang || r.paused || r.asleep, r.changed
		r.mu.Unlock()
	}
	pause := how.TokenMS
	if n == 0 {
		pause = how.FirstMS
	}
	if pause > 0 && !wait(gone, pause) {
		return how, false
	}
	if n == 0 {
		r.prompted.Add(int64(promptBytes/4 + 1))
	}
	r.generated.Add(1)
	return how, true
}

var event = []byte(`data: {"id":"cmpl-fake","object":"chat.completion.chunk","model":"fake",` +
	`"choices":[{"index":0,"delta":{"content":" ok"},"text":" ok"}]}` + "\n\n")

func (r *replica) stream(w http.ResponseWriter, q *http.Request, tokens int) {
	header := w.Header()
	header.Set("Content-Type", "text/event-stream; charset=utf-8")
	header.Set("X-Fake-Replica", r.id)
	control := http.NewResponseController(w)
	piece := event
	r.mu.Lock()
	if size := r.how.StreamBytes; size > 0 {
		piece = bytes.Repeat([]byte("x"), 64<<10)
		tokens = int((size + int64(len(piece)) - 1) / int64(len(piece)))
	}
	r.mu.Unlock()
	for n := range tokens {
		how, ok := r.token(q.Context(), n, int(max(q.ContentLength, 0)))
		if !ok {
			return
		}
		if _, err := w.Write(piece); err != nil || control.Flush() != nil {
			return
		}
		r.mu.Lock()
		r.seen.SentBytes += int64(len(piece))
		r.mu.Unlock()
		if how.CutAfter > 0 && n+1 == how.CutAfter {
			cut(w, how.CutByFIN)
			return
		}
	}
	if len(piece) == len(event) {
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	}
}

// wait pauses and says whether the client is still there.
func wait(gone context.Context, milliseconds int) bool {
	timer := time.NewTimer(time.Duration(milliseconds) * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-gone.Done():
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
