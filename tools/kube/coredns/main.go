// Command coredns is CoreDNS with only the plugins that the local cluster's
// Corefile names. Upstream's own main links some fifty plugins (cloud SDKs,
// etcd, gRPC, …) that a one-node cluster never loads; leaving them out takes
// most of the compile time away.
package main

import (
	"github.com/coredns/coredns/coremain"

	// Plugins register themselves on import; their order in the chain is
	// CoreDNS's own (core/dnsserver), not the order of these lines.
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loop"
	_ "github.com/coredns/coredns/plugin/metrics"
	_ "github.com/coredns/coredns/plugin/ready"
)

func main() { coremain.Run() }
