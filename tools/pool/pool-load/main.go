// Command pool-load drives a closed loop of clients against one address, and says as JSON what
// came of it.
//
// One thread and epoll: on a machine that the load shares with what is measured, a client that
// costs much measures itself. Every client has a connection of its own and keeps it; it sends a
// request, reads the whole answer, and sends the next. An answer that is not 200, that ends before
// its end, or that does not come is an error, counted by its kind; nothing is asked again.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

type settings struct {
	port     int
	clients  int
	seconds  float64
	warmup   float64
	bytes    int
	distinct int
	tokens   int
	stream   bool
	path     string
	headers  string
	session  bool
	timeout  float64
}

// report is the result; times are milliseconds unless their name says otherwise.
type report struct {
	Requests        int            `json:"requests"`
	Seconds         float64        `json:"seconds"`
	RequestsPerSec  float64        `json:"requests_per_second"`
	EventsPerSecond float64        `json:"events_per_second"`
	BytesPerSecond  float64        `json:"bytes_per_second"`
	P50             float64        `json:"p50_ms"`
	P99             float64        `json:"p99_ms"`
	Most            float64        `json:"max_ms"`
	Errors          map[string]int `json:"errors"`
	OwnCPUSeconds   float64        `json:"own_cpu_seconds"`
}

func main() {
	var s settings
	flag.IntVar(&s.port, "port", 0, "port of 127.0.0.1")
	flag.IntVar(&s.clients, "clients", 1, "clients, each with a connection of its own")
	flag.Float64Var(&s.seconds, "seconds", 3, "how long is measured")
	flag.Float64Var(&s.warmup, "warmup", 0.5, "how long it runs before that")
	flag.IntVar(&s.bytes, "bytes", 1024, "of a request's body")
	flag.IntVar(&s.distinct, "distinct", 64, "different prompts")
	flag.IntVar(&s.tokens, "tokens", 1, "max_tokens")
	flag.BoolVar(&s.stream, "stream", false, "ask for an event stream")
	flag.BoolVar(&s.session, "session", false, "name a session, one for each prompt")
	flag.StringVar(&s.path, "path", "/v1/chat/completions", "what is asked for")
	flag.StringVar(&s.headers, "headers", "", `further headers, such as "a: b|c: d"`)
	flag.Float64Var(&s.timeout, "timeout", 30, "seconds without a byte after which a request has failed")
	flag.Parse()
	if s.port == 0 || s.clients < 1 || s.distinct < 1 {
		log.Fatal("--port is needed, and at least one client and one prompt")
	}
	// The first line on standard output says that the measuring has begun: whoever reads CPU times
	// of others does it then.
	result, err := newLoop(s).run(func() { fmt.Println(`{"measuring": true}`) })
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		log.Fatal(err)
	}
}

// request returns one whole request. The fields stand before the messages, and the messages end
// the body.
func request(s settings, number int) []byte {
	head := fmt.Sprintf(`{"model":"fake","stream":%t,"max_tokens":%d,"messages":[{"role":"user","content":"%d `,
		s.stream, s.tokens, number)
	const tail = `"}]}`
	body := head + strings.Repeat("lorem ipsum ", max(0, s.bytes-len(head)-len(tail))/12+1)
	body = body[:max(len(head), s.bytes-len(tail))] + tail
	var b strings.Builder
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"+
		"Accept: */*\r\nUser-Agent: pool-load\r\nContent-Length: %d\r\n", s.path, s.port, len(body))
	if s.session {
		fmt.Fprintf(&b, "X-Session-Id: session-%d\r\n", number)
	}
	if s.headers != "" {
		b.WriteString(strings.ReplaceAll(s.headers, "|", "\r\n") + "\r\n")
	}
	b.WriteString("\r\n" + body)
	return []byte(b.String())
}

type client struct {
	fd      int
	number  int
	out     []byte // what is still to be sent
	writing bool   // epoll watches for room
	parser  parser
	began   time.Time
	heard   time.Time
}

type loop struct {
	s        settings
	requests [][]byte
	epoll    int
	clients  map[int]*client
	buffer   []byte
	turn     int

	counting bool
	stopping bool
	done     int
	events   int
	bytes    int
	took     []float64
	errors   map[string]int
}

func newLoop(s settings) *loop {
	l := &loop{s: s, clients: map[int]*client{}, buffer: make([]byte, 256<<10), errors: map[string]int{}}
	l.took = make([]float64, 0, 1<<20)
	// Large bodies are few: the sizes are what counts, and they are held in memory.
	distinct := s.distinct
	if s.bytes > 1<<20 {
		distinct = min(distinct, 16)
	}
	for number := range distinct {
		l.requests = append(l.requests, request(s, number))
	}
	return l
}

func (l *loop) run(measuring func()) (*report, error) {
	var err error
	if l.epoll, err = syscall.EpollCreate1(0); err != nil {
		return nil, err
	}
	for number := range l.s.clients {
		l.start(&client{number: number})
	}
	begun := time.Now()
	measured := begun.Add(duration(l.s.warmup))
	var end time.Time
	var cpu, used float64
	var from, to time.Time
	events := make([]syscall.EpollEvent, 1024)
	checked := begun
	for {
		n, err := syscall.EpollWait(l.epoll, events, 20)
		if err != nil && err != syscall.EINTR {
			return nil, err
		}
		now := time.Now()
		if !l.counting && !l.stopping && now.After(measured) {
			l.counting, from, cpu = true, now, ownCPU()
			end = from.Add(duration(l.s.seconds))
			measuring()
		}
		if l.counting && !l.stopping && now.After(end) {
			// Each finishes what it has begun: who is measured sees no client break off.
			l.stopping, l.counting, to, used = true, false, now, ownCPU()-cpu
		}
		if l.stopping && (len(l.clients) == 0 || now.After(end.Add(duration(l.s.timeout)))) {
			break
		}
		for _, one := range events[:max(n, 0)] {
			if c := l.clients[int(one.Fd)]; c != nil {
				l.serve(c, one.Events, now)
			}
		}
		if now.Sub(checked) > time.Second {
			checked = now
			for _, c := range l.clients {
				if now.Sub(c.heard) > duration(l.s.timeout) {
					l.fail(c, "timeout")
				}
			}
		}
	}
	seconds := to.Sub(from).Seconds()
	slices.Sort(l.took)
	at := func(part float64) float64 {
		if len(l.took) == 0 {
			return 0
		}
		return l.took[min(len(l.took)-1, int(part*float64(len(l.took))))]
	}
	return &report{
		Requests: l.done, Seconds: seconds,
		RequestsPerSec:  float64(l.done) / seconds,
		EventsPerSecond: float64(l.events) / seconds,
		BytesPerSecond:  float64(l.bytes) / seconds,
		P50:             at(0.5), P99: at(0.99), Most: at(1),
		Errors: l.errors, OwnCPUSeconds: used,
	}, nil
}

func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

func ownCPU() float64 {
	var used syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &used) != nil {
		return 0
	}
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
}

// start gives a client a connection and its next request.
func (l *loop) start(c *client) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		log.Fatalf("no socket: %v", err)
	}
	_ = syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1)
	where := &syscall.SockaddrInet4{Port: l.s.port, Addr: [4]byte{127, 0, 0, 1}}
	if err := syscall.Connect(fd, where); err != nil && err != syscall.EINPROGRESS {
		log.Fatalf("connect: %v", err)
	}
	c.fd, c.writing = fd, true
	l.clients[fd] = c
	watched := syscall.EpollEvent{Events: syscall.EPOLLIN | syscall.EPOLLOUT, Fd: int32(fd)}
	if err := syscall.EpollCtl(l.epoll, syscall.EPOLL_CTL_ADD, fd, &watched); err != nil {
		log.Fatalf("epoll: %v", err)
	}
	l.next(c)
}

func (l *loop) next(c *client) {
	c.out = l.requests[(c.number+l.turn)%len(l.requests)]
	l.turn++
	c.parser = parser{stream: l.s.stream}
	c.began = time.Now()
	c.heard = c.began
}

func (l *loop) fail(c *client, kind string) {
	// Errors count from the first moment on: none is allowed to hide in the warm-up.
	l.errors[kind]++
	l.again(c)
}

func (l *loop) again(c *client) {
	delete(l.clients, c.fd)
	_ = syscall.Close(c.fd)
	if !l.stopping {
		l.start(c)
	}
}

func (l *loop) serve(c *client, what uint32, now time.Time) {
	if what&syscall.EPOLLOUT != 0 && !l.send(c) {
		return
	}
	if what&(syscall.EPOLLIN|syscall.EPOLLHUP|syscall.EPOLLERR) == 0 {
		return
	}
	for {
		n, err := syscall.Read(c.fd, l.buffer)
		if err == syscall.EAGAIN || err == syscall.EINTR {
			return
		}
		if err != nil {
			l.fail(c, c.parser.state()+": "+err.Error())
			return
		}
		if n == 0 {
			l.fail(c, c.parser.state()+": closed")
			return
		}
		c.heard = now
		before := c.parser.events
		if err := c.parser.feed(l.buffer[:n]); err != nil {
			l.fail(c, err.Error())
			return
		}
		if l.counting {
			l.bytes += n
			l.events += c.parser.events - before
		}
		if c.parser.ended() {
			l.finish(c)
			return
		}
		if n < len(l.buffer) {
			return
		}
	}
}

func (l *loop) finish(c *client) {
	if kind := c.parser.verdict(); kind != "" {
		l.errors[kind]++
	} else if l.counting {
		l.done++
		l.took = append(l.took, float64(time.Since(c.began).Nanoseconds())/1e6)
	}
	if c.parser.closes || l.stopping {
		l.again(c)
		return
	}
	l.next(c)
	l.send(c)
}

// send writes what there is; false when the client has got another connection.
func (l *loop) send(c *client) bool {
	for len(c.out) > 0 {
		n, err := syscall.Write(c.fd, c.out)
		if err == syscall.EAGAIN {
			l.watch(c, true)
			return true
		}
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			// What it was answered, if anything, tells more than that it does not read.
			if n, _ := syscall.Read(c.fd, l.buffer); n > 0 && c.parser.feed(l.buffer[:n]) == nil && c.parser.ended() {
				l.errors[c.parser.verdict()]++
				l.again(c)
			} else {
				l.fail(c, "write: "+err.Error())
			}
			return false
		}
		c.out = c.out[n:]
		// Progress of the upload is progress.
		c.heard = time.Now()
	}
	l.watch(c, false)
	return true
}

func (l *loop) watch(c *client, writing bool) {
	if c.writing == writing {
		return
	}
	c.writing = writing
	watched := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(c.fd)}
	if writing {
		watched.Events |= syscall.EPOLLOUT
	}
	if err := syscall.EpollCtl(l.epoll, syscall.EPOLL_CTL_MOD, c.fd, &watched); err != nil {
		log.Fatalf("epoll: %v", err)
	}
}
