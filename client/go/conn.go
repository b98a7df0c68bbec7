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
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"howdah.dev/go/howdahv1"
)

// broker is one address of a client.
type broker struct {
	name      string
	target    string
	transport credentials.TransportCredentials
	// For calls. Each stream has a connection of its own: the death of this one may be noticed late.
	conn *grpc.ClientConn
	// Whether its database was compared with that of the others.
	checked atomic.Bool
}

// database is that of the first broker that answered.
type database struct{ id, broker string }

func (c *Client) newBroker(address string) (*broker, error) {
	raw := address
	if !strings.Contains(raw, "://") {
		raw = "http://" + raw
	}
	refuse := func(text string) error {
		return &Error{Code: codes.InvalidArgument, Field: "Servers", Message: fmt.Sprintf("%q: %s", address, text)}
	}
	u, err := url.Parse(raw)
	if err != nil || u.Hostname() == "" {
		return nil, refuse("is no address")
	}
	host := u.Hostname()
	b := &broker{name: u.Scheme + "://" + u.Host, transport: insecure.NewCredentials()}
	port := "80"
	hasToken := c.cfg.Token != "" || c.cfg.TokenFile != ""
	isHere := strings.EqualFold(host, "localhost") || net.ParseIP(host).IsLoopback()
	switch {
	case u.Scheme == "https":
		port, b.transport = "443", credentials.NewTLS(c.cfg.TLS)
	case u.Scheme != "http":
		return nil, refuse("begins with neither http:// nor https://")
	case hasToken && !isHere && !c.cfg.InsecureToken:
		return nil, refuse("everybody on the way could read the token: use https://, or set InsecureToken where the network " +
			"itself encrypts")
	}
	b.target = "dns:///" + net.JoinHostPort(host, cmp.Or(u.Port(), port))
	b.conn, err = c.dial(b)
	return b, err
}

// dial makes a connection, which connects when it is used.
func (c *Client) dial(b *broker) (*grpc.ClientConn, error) {
	pause := backoff.Config{BaseDelay: firstPause, Multiplier: 2, Jitter: 0.5, MaxDelay: longestPause}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(b.transport),
		grpc.WithPerRPCCredentials(bearer{c}),
		grpc.WithUserAgent("howdah-go/" + Version),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: pause, MinConnectTimeout: c.cfg.ConnectTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 10 * time.Second, Timeout: 10 * time.Second, PermitWithoutStream: true,
		}),
		// With the default of 64 KiB a stream of jobs stalls at each round trip.
		grpc.WithInitialWindowSize(8 << 20), grpc.WithInitialConnWindowSize(16 << 20),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(c.cfg.MaxMessageBytes), grpc.MaxCallSendMsgSize(c.cfg.MaxMessageBytes),
		),
	}
	return grpc.NewClient(b.target, append(options, c.cfg.DialOptions...)...)
}

// TLSFiles reads a configuration for TLS from PEM files: the authorities to trust (empty: those of the system), and the
// certificate to show with its key (both empty: none).
func TLSFiles(ca, cert, key string) (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("howdah: authorities for TLS: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("howdah: authorities for TLS: %s has no certificate", ca)
		}
	}
	if cert != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("howdah: certificate for TLS: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// bearer adds the token to each call. A file is read each time: somebody else may replace it.
type bearer struct{ c *Client }

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token := string(b.c.cfg.Token)
	if file := b.c.cfg.TokenFile; file != "" && token == "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("the file of the token: %w", err)
		}
		token = strings.TrimSpace(string(text))
	}
	switch {
	case token == "":
		return nil, nil
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return nil, errors.New("the token has characters that no token has")
	}
	return map[string]string{"authorization": "Bearer " + token}, nil
}

// RequireTransportSecurity is false because newBroker has looked at the address.
func (bearer) RequireTransportSecurity() bool { return false }

// inStore returns the context of a call or stream, which names the store of the client. The token is of the connection,
// which clients of several stores share.
func (c *Client) inStore(ctx context.Context) context.Context {
	if c.store == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "howdah-store", c.store)
}

// check fails if the broker serves another database than the first one: jobs would wait there for workers that never
// come.
func (c *Client) check(ctx context.Context, b *broker, conn *grpc.ClientConn) error {
	if len(c.brokers) == 1 || b.checked.Load() {
		return nil
	}
	return c.compare(ctx, b, conn)
}

func (c *Client) compare(ctx context.Context, b *broker, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.ConnectTimeout)
	defer cancel()
	var header, trailer metadata.MD
	settings := howdahv1.NewSettingsServiceClient(conn)
	_, err := settings.GetSettings(ctx, &howdahv1.GetSettingsRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
	// A refusal tells it too.
	ids := append(header.Get("howdah-database"), trailer.Get("howdah-database")...)
	if err = b.explain(err); len(ids) == 0 {
		return err
	}
	c.database.CompareAndSwap(nil, &database{ids[0], b.name})
	if first := c.database.Load(); first.id != ids[0] {
		text := b.name + " serves another database than " + first.broker + "; give only brokers of one database to a client"
		return &Error{Code: codes.InvalidArgument, Field: "Servers", Message: text}
	}
	b.checked.Store(true)
	return nil
}

// Ping asks each broker, and fails if none answers, or if they serve different databases. Without it, a broker is asked
// before it is used.
func (c *Client) Ping(ctx context.Context) error {
	var all error
	answers := 0
	for _, b := range c.brokers {
		err := c.compare(ctx, b, b.conn)
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

// Reason returns a context for calls that change something: brokers record the text in their audit.
func Reason(ctx context.Context, text string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "howdah-reason", url.PathEscape(text))
}
