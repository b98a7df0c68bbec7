package howdah_test

import (
	"io"
	"net"
	"sync"
	"testing"
)

// proxy forwards connections to the broker. A test can cut all connections, and can refuse new ones.
type proxy struct {
	listener net.Listener
	mu       sync.Mutex
	open     []net.Conn
	refuses  bool
}

func newProxy(t testing.TB) *proxy {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	p := &proxy{listener: listener}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { p.pass(from) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		p.set(true)
		all.Wait()
	})
	return p
}

func (p *proxy) pass(from net.Conn) {
	defer from.Close()
	to, err := net.Dial("tcp", broker.Address)
	if err != nil {
		return
	}
	defer to.Close()
	p.mu.Lock()
	if p.refuses {
		p.mu.Unlock()
		return
	}
	p.open = append(p.open, from, to)
	p.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { io.Copy(to, from); to.Close() })
	both.Go(func() { io.Copy(from, to); from.Close() })
	both.Wait()
}

// set cuts all connections, and sets whether new connections are refused.
func (p *proxy) set(refuses bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuses = refuses
	for _, conn := range p.open {
		conn.Close()
	}
	p.open = nil
}

func (p *proxy) address() string { return p.listener.Addr().String() }
