// Command fake-vllm stands in for vLLM servers where a test needs load or a fault.
//
// One process holds any number of replicas, each on a port of its own. They answer vLLM's
// OpenAI, health, metrics and refit paths with made-up text (with --flat only the first, flat out). A control port of its own, which no
// balancer knows, changes how a replica behaves and tells what it has seen:
//
//	GET  /              ids and ports of all
//	POST /new           {"id": "r9", "port": 0}: one more; answers with its port
//	POST /ID/behave     a behaviour, whole; fields that are left out are those of a healthy replica
//	GET  /ID/seen       what it has been asked
//	POST /ID/forget     begin to count anew
//	POST /ID/die        end as a killed process does: no listener, every connection reset
//	POST /ID/relaunch   {"port": 0}: come back healthy, with nothing seen
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
)

type fleet struct {
	mu       sync.Mutex
	host     string
	replicas map[string]*replica
}

func main() {
	host := flag.String("host", "127.0.0.1", "address that everything listens on")
	ports := flag.String("ports", "0", "ports of the replicas, parted by commas; 0 takes a free one")
	prefix := flag.String("prefix", "r", "ids of the replicas: this and a number from 0")
	control := flag.Int("control", 0, "port of the control paths; 0 takes a free one")
	quick := flag.Bool("flat", false, "answer at once and cheaply: no faults, no record, no control")
	orphan := flag.Bool("orphan", false, "go on when standard input is closed")
	flag.Parse()
	if !*orphan {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(0)
		}()
	}
	var wanted []int
	for _, word := range strings.Split(*ports, ",") {
		port, err := strconv.Atoi(word)
		if err != nil {
			log.Fatalf("--ports: %q is no port", word)
		}
		wanted = append(wanted, port)
	}
	if *quick {
		log.Fatal(serveFlat(*prefix, wanted))
	}
	all := &fleet{host: *host, replicas: map[string]*replica{}}
	for number, port := range wanted {
		if _, err := all.add(*prefix+strconv.Itoa(number), port); err != nil {
			log.Fatal(err)
		}
	}
	socket, err := net.Listen("tcp", fmt.Sprintf("%s:%d", *host, *control))
	if err != nil {
		log.Fatal(err)
	}
	// The first line tells whoever has started this where everything listens.
	line, _ := json.Marshal(map[string]any{"control": portOf(socket), "replicas": all.ports()})
	fmt.Println(string(line))
	log.Fatal(http.Serve(socket, all))
}

func serveFlat(prefix string, wanted []int) error {
	made, err := newFlat()
	if err != nil {
		return err
	}
	ports, listeners := map[string]int{}, map[int]bool{}
	for number, port := range wanted {
		listener, found, err := made.listen(port)
		if err != nil {
			return err
		}
		listeners[listener], ports[prefix+strconv.Itoa(number)] = true, found
	}
	line, _ := json.Marshal(map[string]any{"replicas": ports})
	fmt.Println(string(line))
	return made.serve(listeners)
}

func portOf(socket net.Listener) int { return socket.Addr().(*net.TCPAddr).Port }

func (f *fleet) add(id string, port int) (*replica, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.replicas[id] != nil {
		return nil, fmt.Errorf("there is a replica %s already", id)
	}
	made := newReplica(id, f.host)
	if err := made.launch(port); err != nil {
		return nil, err
	}
	f.replicas[id] = made
	return made, nil
}

func (f *fleet) ports() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	found := map[string]int{}
	for id, one := range f.replicas {
		found[id] = one.listening()
	}
	return found
}

func (f *fleet) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if q.URL.Path == "/" {
		answer(w, 200, f.ports())
		return
	}
	var place struct {
		ID   string `json:"id"`
		Port int    `json:"port"`
	}
	if q.URL.Path == "/new" {
		if !read(w, q, &place) {
			return
		}
		made, err := f.add(place.ID, place.Port)
		if err != nil {
			http.Error(w, err.Error(), 409)
			return
		}
		answer(w, 200, map[string]int{"port": made.listening()})
		return
	}
	id, what, _ := strings.Cut(strings.TrimPrefix(q.URL.Path, "/"), "/")
	f.mu.Lock()
	one := f.replicas[id]
	f.mu.Unlock()
	if one == nil {
		http.Error(w, "there is no replica "+id, 404)
		return
	}
	switch what {
	case "behave":
		var how behaviour
		if read(w, q, &how) {
			one.behave(how)
			answer(w, 200, how)
		}
	case "seen":
		answer(w, 200, one.report())
	case "forget":
		one.forget()
		answer(w, 200, nil)
	case "die":
		one.die()
		answer(w, 200, nil)
	case "relaunch":
		if !read(w, q, &place) {
			return
		}
		one.die()
		if err := one.launch(place.Port); err != nil {
			http.Error(w, err.Error(), 409)
			return
		}
		answer(w, 200, map[string]int{"port": one.listening()})
	default:
		http.NotFound(w, q)
	}
}

// read takes a request's JSON. A misspelt field would leave a replica healthy and its test
// without meaning, so it is refused.
func read(w http.ResponseWriter, q *http.Request, into any) bool {
	decoder := json.NewDecoder(q.Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil && err != io.EOF {
		http.Error(w, err.Error(), 400)
		return false
	}
	return true
}

func answer(w http.ResponseWriter, status int, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		http.Error(w, err.Error(), 500)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
