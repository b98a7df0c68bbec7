package howdah

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"howdah.dev/go/howdahv1"
)

// broker is one configured broker address.
type broker struct {
	name      string
	target    string
	transport credentials.TransportCredentials
	// Connection for unary calls. A stream does not use it, but opens a new connection, because an existing one may be
	// broken without the client having noticed.
	conn *grpc.ClientConn
	// Whether the client has checked that the broker serves the same database as its other brokers.
	checked atomic.Bool
}

// database is the id of the database of the first broker that answered, and the name of that broker.
type database struct{ id, broker string }

func (c *Client) newBroker(address string) (*broker, error) {
	raw := address
	if !strings.Contains(raw, "://") {
		raw = "http://" + raw
	}
	refused := func(text string) error { return invalid("Servers", "%q: %s", address, text) }
	u, err := url.Parse(raw)
	if err != nil || u.Hostname() == "" {
		return nil, refused("is not host:port, http://host:port or https://host:port")
	}
	host := u.Hostname()
	b := &broker{name: u.Scheme + "://" + u.Host, transport: insecure.NewCredentials()}
	port := "80"
	hasToken := c.cfg.Token != "" || c.cfg.TokenFile != ""
	isLoopback := strings.EqualFold(host, "localhost") || net.ParseIP(host).IsLoopback()
	switch {
	case u.Scheme == "https":
		port, b.transport = "443", credentials.NewTLS(c.cfg.TLS)
	case u.Scheme != "http":
		return nil, refused("begins with neither http:// nor https://")
	case hasToken && !isLoopback && !c.cfg.InsecureToken:
		return nil, refused("a token over http:// is readable by anyone on the network path: use https://, or set InsecureToken " +
			"where the network itself encrypts")
	}
	b.target = "dns:///" + net.JoinHostPort(host, cmp.Or(u.Port(), port))
	b.conn, err = c.dial(b)
	return b, err
}

// dial makes a gRPC connection to the broker, which connects at its first call.
func (c *Client) dial(b *broker) (*grpc.ClientConn, error) {
	reconnect := grpcbackoff.Config{BaseDelay: minBackoff, Multiplier: 2, Jitter: 0.5, MaxDelay: maxBackoff}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(b.transport),
		grpc.WithPerRPCCredentials(bearer{c}),
		grpc.WithUserAgent("howdah-go/" + Version),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: c.cfg.ConnectTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 10 * time.Second, Timeout: 10 * time.Second, PermitWithoutStream: true,
		}),
		// HTTP/2 flow-control windows. With gRPC's default of 64 KiB, a stream of jobs would stall at each round trip.
		grpc.WithInitialWindowSize(8 << 20), grpc.WithInitialConnWindowSize(16 << 20),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(c.cfg.MaxMessageBytes), grpc.MaxCallSendMsgSize(c.cfg.MaxMessageBytes),
		),
	}
	return grpc.NewClient(b.target, append(options, c.cfg.DialOptions...)...)
}

// TLSFiles reads a TLS configuration from PEM files: the CA certificates to trust (empty: the system's), and the client
// certificate with its key (both empty: none).
func TLSFiles(ca, cert, key string) (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("howdah: CA file for TLS: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("howdah: CA file for TLS: %s contains no certificate", ca)
		}
	}
	if cert != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("howdah: client certificate for TLS: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// bearer adds the token to each call. It rereads a token file for each call, because the file may be replaced.
type bearer struct{ c *Client }

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token := string(b.c.cfg.Token)
	if file := b.c.cfg.TokenFile; file != "" && token == "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("the token file: %w", err)
		}
		token = strings.TrimSpace(string(text))
	}
	switch {
	case token == "":
		return nil, nil
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return nil, errors.New("the token contains spaces or characters other than printable ASCII")
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity returns false because newBroker has already refused addresses to which the token must not be
// sent unencrypted.
func (bearer) RequireTransportSecurity() bool { return false }

// inStore adds the client's store to the metadata of a call or stream. The connection adds the token but not the store,
// because clients of several stores share the connection.
func (c *Client) inStore(ctx context.Context) context.Context {
	if c.store == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "howdah-store", c.store)
}

// checkDatabase fails if the broker serves a different database than the first one. In a different database, jobs would
// wait for workers that never come.
func (c *Client) checkDatabase(ctx context.Context, b *broker, conn *grpc.ClientConn) error {
	if len(c.brokers) == 1 || b.checked.Load() {
		return nil
	}
	return c.compareDatabase(ctx, b, conn)
}

func (c *Client) compareDatabase(ctx context.Context, b *broker, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.ConnectTimeout)
	defer cancel()
	var header, trailer metadata.MD
	settings := howdahv1.NewSettingsServiceClient(conn)
	_, err := settings.GetSettings(ctx, &howdahv1.GetSettingsRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
	// The broker names its database even if it refuses the call, in the header or the trailer.
	ids := append(header.Get("howdah-database"), trailer.Get("howdah-database")...)
	if err = b.withBroker(err); len(ids) == 0 {
		return err
	}
	c.database.CompareAndSwap(nil, &database{ids[0], b.name})
	if first := c.database.Load(); first.id != ids[0] {
		return invalid("Servers", "%s serves another database than %s; give only brokers of one database to a client",
			b.name, first.broker)
	}
	b.checked.Store(true)
	return nil
}

// Ping calls each broker. It fails if no broker answers, or if the brokers serve different databases. A program need
// not call Ping: the client also checks a broker's database before it first uses the broker.
func (c *Client) Ping(ctx context.Context) error {
	var all error
	answers := 0
	for _, b := range c.brokers {
		err := c.compareDatabase(ctx, b, b.conn)
		if isRefusal(err) {
			return err
		} else if err == nil {
			answers++
		}
		all = errors.Join(all, err)
	}
	if answers > 0 {
		return nil
	}
	return all
}

// Reason returns a context that gives the reason for the changes made with it. The broker records the text in its audit
// log.
func Reason(ctx context.Context, text string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "howdah-reason", url.PathEscape(text))
}
