package main

import (
	"bytes"
	"fmt"
	"strconv"
	"syscall"
)

// flat answers every request well and at once, on one thread with epoll: where the load shares
// its processors with what is measured, a replica that costs much measures itself. It knows no
// faults and has no record; `"stream":true` and max_tokens are looked for as bytes.
type flat struct {
	epoll  int
	conns  map[int]*conn
	buffer []byte
	plain  []byte
}

type conn struct {
	fd      int
	in      []byte
	skip    int    // bytes of the body that are still to come
	wants   int    // events of the answer to it; 0: no stream
	left    int    // events still to be written, and the end
	out     []byte // bytes still to be written, before those
	writing bool
}

func newFlat() (*flat, error) {
	epoll, err := syscall.EpollCreate1(0)
	if err != nil {
		return nil, err
	}
	body := `{"id":"cmpl-flat","object":"chat.completion","model":"fake","choices":[{"index":0,` +
		`"finish_reason":"stop","text":"ok","message":{"role":"assistant","content":"ok"}}],` +
		`"usage":{"completion_tokens":1}}`
	return &flat{
		epoll: epoll, conns: map[int]*conn{}, buffer: make([]byte, 256<<10),
		plain: fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"+
			"Content-Length: %d\r\n\r\n%s", len(body), body),
	}, nil
}

var (
	flatHead = []byte("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n" +
		"Transfer-Encoding: chunked\r\n\r\n")
	flatEvent = fmt.Appendf(nil, "%x\r\n%s\r\n", len(event), event)
	flatEnd   = []byte("e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
)

// listen opens one port of 127.0.0.1 and returns it.
func (f *flat) listen(port int) (int, int, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0, 0, err
	}
	_ = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	where := &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}
	if err := syscall.Bind(fd, where); err != nil {
		return 0, 0, err
	}
	if err := syscall.Listen(fd, 4096); err != nil {
		return 0, 0, err
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		return 0, 0, err
	}
	f.watch(syscall.EPOLL_CTL_ADD, fd, syscall.EPOLLIN)
	return fd, name.(*syscall.SockaddrInet4).Port, nil
}

func (f *flat) watch(what, fd int, events uint32) {
	_ = syscall.EpollCtl(f.epoll, what, fd, &syscall.EpollEvent{Events: events, Fd: int32(fd)})
}

func (f *flat) serve(listeners map[int]bool) error {
	events := make([]syscall.EpollEvent, 1024)
	for {
		n, err := syscall.EpollWait(f.epoll, events, -1)
		if err != nil && err != syscall.EINTR {
			return err
		}
		for _, one := range events[:max(n, 0)] {
			fd := int(one.Fd)
			if listeners[fd] {
				f.accept(fd)
			} else if c := f.conns[fd]; c != nil && !f.turn(c, one.Events) {
				delete(f.conns, fd)
				_ = syscall.Close(fd)
			}
		}
	}
}

func (f *flat) accept(listener int) {
	for {
		fd, _, err := syscall.Accept4(listener, syscall.SOCK_NONBLOCK)
		if err != nil {
			return
		}
		_ = syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1)
		f.conns[fd] = &conn{fd: fd}
		f.watch(syscall.EPOLL_CTL_ADD, fd, syscall.EPOLLIN)
	}
}

// turn reads and writes what there is; false ends the connection.
func (f *flat) turn(c *conn, what uint32) bool {
	if what&(syscall.EPOLLERR|syscall.EPOLLHUP) != 0 {
		return false
	}
	if what&syscall.EPOLLIN != 0 {
		n, err := syscall.Read(c.fd, f.buffer)
		if err == syscall.EAGAIN || err == syscall.EINTR {
			return true
		}
		if err != nil || n == 0 || !f.take(c, f.buffer[:n]) {
			return false
		}
	}
	return f.write(c)
}

// take reads one request after the other; the bytes of long bodies are not kept.
func (f *flat) take(c *conn, data []byte) bool {
	for len(data) > 0 {
		if c.skip > 0 {
			some := min(c.skip, len(data))
			c.skip -= some
			data = data[some:]
			if c.skip == 0 {
				f.reply(c)
			}
			continue
		}
		c.in = append(c.in, data...)
		end := bytes.Index(c.in, []byte("\r\n\r\n"))
		if end < 0 {
			return len(c.in) < 1<<20
		}
		length := number(c.in[:end], "\r\ncontent-length: ")
		// What decides stands at the begin of the body; some of that comes with the headers, or
		// the connection's next bytes are waited for.
		body := c.in[end+4:]
		const decisive = 200
		if len(body) < min(length, decisive) {
			return true
		}
		c.wants = 0
		if bytes.Contains(body[:min(len(body), decisive)], []byte(`"stream":true`)) {
			c.wants = max(1, number(body, `"max_tokens":`))
		}
		rest := min(len(body), length)
		data = append([]byte{}, body[rest:]...)
		c.skip = length - rest
		c.in = c.in[:0]
		if c.skip == 0 {
			f.reply(c)
		}
	}
	return true
}

func (f *flat) reply(c *conn) {
	if c.wants == 0 {
		c.out = append(c.out, f.plain...)
		return
	}
	c.out, c.left = append(c.out, flatHead...), c.wants+1
}

// number returns the digits behind a name, in whatever case the name is; 0 without it.
func number(text []byte, name string) int {
	at := bytes.Index(text, []byte(name))
	if at < 0 {
		if at = bytes.Index(bytes.ToLower(text), []byte(name)); at < 0 {
			return 0
		}
	}
	end := at + len(name)
	for end < len(text) && text[end] >= '0' && text[end] <= '9' {
		end++
	}
	value, _ := strconv.Atoi(string(text[at+len(name) : end]))
	return value
}

// write sends what is to be sent: the events of a stream one by one, without a pause, until the
// connection takes no more.
func (f *flat) write(c *conn) bool {
	for len(c.out) > 0 || c.left > 0 {
		if len(c.out) == 0 {
			if c.left--; c.left == 0 {
				c.out = append(c.out, flatEnd...)
			} else {
				c.out = append(c.out, flatEvent...)
			}
		}
		n, err := syscall.Write(c.fd, c.out)
		if err == syscall.EAGAIN {
			break
		}
		if err != nil && err != syscall.EINTR {
			return false
		}
		c.out = c.out[:copy(c.out, c.out[max(n, 0):])]
	}
	writing := len(c.out) > 0 || c.left > 0
	if writing != c.writing {
		c.writing = writing
		wanted := uint32(syscall.EPOLLIN)
		if writing {
			wanted |= syscall.EPOLLOUT
		}
		f.watch(syscall.EPOLL_CTL_MOD, c.fd, wanted)
	}
	return true
}
