package main

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// parser reads one answer, in whatever pieces it comes.
type parser struct {
	stream bool // an event stream is expected, and has to end with [DONE]

	head    []byte // until it is whole
	headed  bool
	status  int
	closes  bool
	chunked bool
	left    int // of the body, or of a chunk with its line end
	last    bool
	line    []byte // of a chunk's size
	over    bool

	newline bool   // the last byte was one
	events  int    // empty lines of the body
	tail    []byte // its last bytes
}

var errMalformed = errors.New("malformed answer")

func (p *parser) ended() bool { return p.over }

func (p *parser) state() string {
	switch {
	case !p.headed && len(p.head) == 0:
		return "before the answer"
	case !p.headed:
		return "in the headers"
	default:
		return "cut in the body"
	}
}

// verdict names what is wrong with a whole answer; empty: nothing.
func (p *parser) verdict() string {
	if p.status != 200 {
		return fmt.Sprintf("status %d", p.status)
	}
	if p.stream && !bytes.Contains(p.tail, []byte("[DONE]")) {
		return "ended without [DONE]"
	}
	return ""
}

func (p *parser) feed(data []byte) error {
	if !p.headed {
		// Nearly always the headers come whole: then nothing is copied.
		whole := data
		if len(p.head) > 0 {
			p.head = append(p.head, data...)
			whole = p.head
		}
		end := bytes.Index(whole, []byte("\r\n\r\n"))
		if end < 0 {
			if len(p.head) == 0 {
				p.head = append(p.head, data...)
			}
			if len(p.head) > 1<<20 {
				return errMalformed
			}
			return nil
		}
		if err := p.headers(whole[:end+2]); err != nil {
			return err
		}
		p.headed = true
		data = whole[end+4:]
		if !p.chunked && p.left == 0 {
			p.over = true
		}
	}
	for len(data) > 0 {
		if p.over {
			return errMalformed
		}
		if !p.chunked {
			if len(data) > p.left {
				return errMalformed
			}
			p.content(data)
			p.left -= len(data)
			p.over = p.left == 0
			return nil
		}
		var err error
		if data, err = p.chunk(data); err != nil {
			return err
		}
	}
	return nil
}

func (p *parser) headers(head []byte) error {
	lines := bytes.Split(head, []byte("\r\n"))
	if len(lines[0]) < 12 || !bytes.HasPrefix(lines[0], []byte("HTTP/1.")) {
		return errMalformed
	}
	var err error
	if p.status, err = strconv.Atoi(string(lines[0][9:12])); err != nil {
		return errMalformed
	}
	length := false
	for _, line := range lines[1:] {
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch len(name) {
		case len("content-length"):
			if bytes.EqualFold(name, []byte("content-length")) {
				if p.left, err = strconv.Atoi(string(value)); err != nil || p.left < 0 {
					return errMalformed
				}
				length = true
			}
		case len("transfer-encoding"):
			p.chunked = p.chunked || bytes.EqualFold(name, []byte("transfer-encoding")) &&
				bytes.EqualFold(value, []byte("chunked"))
		case len("connection"):
			p.closes = p.closes || bytes.EqualFold(name, []byte("connection")) &&
				bytes.EqualFold(value, []byte("close"))
		}
	}
	if p.chunked {
		p.left = 0
	} else if !length {
		return errMalformed
	}
	return nil
}

// chunk takes the size of a chunk, or some of its bytes, and returns what is left of the data.
func (p *parser) chunk(data []byte) ([]byte, error) {
	if p.left > 0 {
		take := min(p.left, len(data))
		// The line end of the chunk belongs to no event.
		if body := min(take, p.left-2); body > 0 && !p.last {
			p.content(data[:body])
		}
		p.left -= take
		p.over = p.last && p.left == 0
		return data[take:], nil
	}
	end := bytes.IndexByte(data, '\n')
	if end < 0 {
		p.line = append(p.line, data...)
		return nil, nil
	}
	p.line = append(p.line, data[:end]...)
	size, err := strconv.ParseUint(strings.TrimSpace(string(p.line)), 16, 31)
	if err != nil {
		return nil, errMalformed
	}
	p.line = p.line[:0]
	p.left, p.last = int(size)+2, size == 0
	return data[end+1:], nil
}

func (p *parser) content(data []byte) {
	if !p.stream {
		return
	}
	for from := 0; from < len(data); {
		at := bytes.IndexByte(data[from:], '\n')
		if at < 0 {
			p.newline = false
			break
		}
		at += from
		if at > from {
			p.newline = false
		}
		if p.newline {
			p.events++
			p.newline = false
		} else {
			p.newline = true
		}
		from = at + 1
	}
	const kept = 16
	if len(data) >= kept {
		p.tail = append(p.tail[:0], data[len(data)-kept:]...)
		return
	}
	p.tail = append(p.tail, data...)
	if len(p.tail) > kept {
		p.tail = p.tail[len(p.tail)-kept:]
	}
}
