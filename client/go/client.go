// Package howdah is the Go client of Howdah, a gRPC streaming job broker on PostgreSQL.
//
// A [Client] enqueues jobs and makes the calls of operators. A [Worker] runs jobs: it opens one stream to a broker,
// which pushes as many jobs as the worker runs at once. A [Producer] enqueues many jobs over one stream, in batches.
//
// When an enqueue returns, the job is committed exactly once. A worker resends the outcome of a handler until the broker
// confirms it. When its stream breaks, the worker resumes at any broker and keeps the jobs that it holds.
//
// The messages and stubs of the protocol are in the package [howdah.dev/go/howdahv1]. A [Client] implements
// [grpc.ClientConnInterface], so calls of the stubs get its deadlines, retries and errors:
//
//	jobs := howdahv1.NewJobServiceClient(client)
//	answer, err := jobs.CancelJobs(ctx, &howdahv1.CancelJobsRequest{Ids: []int64{17}})
package howdah

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"howdah.dev/go/howdahv1"
)

// Version is the version of this module. Workers report it to the broker as part of their label "client".
const Version = "0.1.0"

// Config has the settings of a [Client]. All fields are optional. Unset addresses and credentials come from the
// environment variables that the command line reads: HOWDAH_SERVER, HOWDAH_TOKEN, HOWDAH_TOKEN_FILE, HOWDAH_TLS_CA,
// HOWDAH_TLS_CLIENT_CERT, HOWDAH_TLS_CLIENT_KEY and HOWDAH_CLIENT_INSECURE.
type Config struct {
	// Addresses of brokers that serve the same database: `host:port`, `http://host:port`, or `https://host:port` for TLS.
	// One entry may hold several addresses, separated by commas. If a broker is unreachable, the client uses the next
	// one. Default: HOWDAH_SERVER, or else 127.0.0.1:7432.
	Servers []string
	// TLS configuration for `https://` addresses. Default: the files that HOWDAH_TLS_CA, HOWDAH_TLS_CLIENT_CERT and
	// HOWDAH_TLS_CLIENT_KEY name (see [TLSFiles]), or else the system's root certificates.
	TLS *tls.Config
	// Token to authenticate each call.
	Token Secret
	// File with the token, instead of Token. The client reads it for each call, so the file may be replaced at any time.
	TokenFile string
	// Sends the token over `http://` to brokers on other machines too, which exposes it to the network. Use it only on
	// encrypted networks, such as a VPN or a service mesh with mutual TLS.
	InsecureToken bool
	// Timeout of one attempt to connect. Default: 5 s.
	ConnectTimeout time.Duration
	// Timeout of a call whose context has no deadline, including retries. Default: 30 s.
	RequestTimeout time.Duration
	// The largest message sent or accepted, in bytes. Default: 16 MiB.
	MaxMessageBytes int
	// Destination of log lines. Default: [slog.Default].
	Logger *slog.Logger
	// Functions that wrap each enqueue. The first one is the outermost.
	EnqueueMiddleware []func(EnqueueFunc) EnqueueFunc
	// Additional options for connections, such as a statistics handler or a dialer.
	DialOptions []grpc.DialOption
}

// Secret is a string that is never printed or logged.
type Secret string

// String returns a placeholder instead of the secret.
func (Secret) String() string { return "(secret)" }

// GoString returns a placeholder instead of the secret, for %#v.
func (Secret) GoString() string { return "(secret)" }

// MarshalText returns a placeholder instead of the secret, for logs in JSON.
func (Secret) MarshalText() ([]byte, error) { return []byte("(secret)"), nil }

func (c *Config) setDefaults() (err error) {
	if c.Token != "" && c.TokenFile != "" {
		return invalid("Token", "Token and TokenFile are both set: set one")
	}
	err = cmp.Or(
		checkNotNegative("ConnectTimeout", c.ConnectTimeout), checkNotNegative("RequestTimeout", c.RequestTimeout),
		checkNotNegative("MaxMessageBytes", c.MaxMessageBytes),
	)
	if err != nil {
		return err
	}
	if env := os.Getenv; c.Token == "" && c.TokenFile == "" {
		c.Token, c.TokenFile = Secret(env("HOWDAH_TOKEN")), env("HOWDAH_TOKEN_FILE")
		if c.Token != "" && c.TokenFile != "" {
			return invalid("Token", "HOWDAH_TOKEN and HOWDAH_TOKEN_FILE are both set: unset one")
		}
	}
	if len(c.Servers) == 0 {
		c.Servers = []string{cmp.Or(os.Getenv("HOWDAH_SERVER"), "127.0.0.1:7432")}
	}
	if c.TLS == nil {
		ca, cert := os.Getenv("HOWDAH_TLS_CA"), os.Getenv("HOWDAH_TLS_CLIENT_CERT")
		c.TLS, err = TLSFiles(ca, cert, os.Getenv("HOWDAH_TLS_CLIENT_KEY"))
	}
	insecure := strings.ToLower(os.Getenv("HOWDAH_CLIENT_INSECURE"))
	c.InsecureToken = c.InsecureToken || !slices.Contains([]string{"", "0", "n", "no", "f", "false", "off"}, insecure)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, 5*time.Second)
	c.RequestTimeout = cmp.Or(c.RequestTimeout, 30*time.Second)
	c.MaxMessageBytes = cmp.Or(c.MaxMessageBytes, 16<<20)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	return err
}

// Client holds connections to one or more brokers of one database. It is safe for concurrent use.
type Client struct {
	*shared
	store   string // Name of the store; empty: the broker chooses.
	enqueue EnqueueFunc
}

// shared is the state that a client shares with the clients that [Client.InStore] derives from it.
type shared struct {
	cfg      Config
	brokers  []*broker
	current  atomic.Int64 // Index of the broker in use.
	database atomic.Pointer[database]
}

// New makes a client. It connects at the first call, so that the broker may start later. Close it after use.
func New(cfg Config) (*Client, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	c := newClient(&shared{cfg: cfg}, "")
	for address := range strings.SplitSeq(strings.Join(cfg.Servers, ","), ",") {
		b, err := c.newBroker(strings.TrimSpace(address))
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		c.brokers = append(c.brokers, b)
	}
	return c, nil
}

func newClient(all *shared, store string) *Client {
	c := &Client{shared: all, store: store}
	c.enqueue = wrap(all.cfg.EnqueueMiddleware, c.enqueueOnce)
	return c
}

// InStore returns a client for one of the stores that a broker serves. Its calls, jobs and workers use only that store.
// A worker of a client without a store gets jobs of all stores. The new client shares the connections of this one, so
// close only one of the two.
func (c *Client) InStore(name string) (*Client, error) {
	// The header `howdah-store` permits only printable ASCII, like all text metadata of gRPC. The broker checks whether
	// the store exists.
	if strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r > '~' }) {
		return nil, invalid("store", "%q is not the name of a store", name)
	}
	return newClient(c.shared, name), nil
}

// Close closes the connections. Stop workers and close producers first.
func (c *Client) Close() (err error) {
	for _, b := range c.brokers {
		err = errors.Join(err, b.conn.Close())
	}
	return err
}

// switchFrom makes the next broker the current one, unless another call has already switched away from the broker with
// this index.
func (c *Client) switchFrom(index int64) {
	c.current.CompareAndSwap(index, (index+1)%int64(len(c.brokers)))
}

// tries returns the maximum number of attempts of a call. 0 means that an idempotent call with a request key is
// repeated until its deadline.
func (c *Client) tries(method string, request any) int {
	if keyed, ok := request.(interface{ GetRequestKey() string }); ok && keyed.GetRequestKey() != "" {
		return 0
	} else if ok {
		return 1
	}
	switch method {
	case howdahv1.WorkerService_PullJobs_FullMethodName, howdahv1.AccessService_CreateToken_FullMethodName,
		howdahv1.SettingsService_AdvanceClock_FullMethodName:
		return 1
	}
	return len(c.brokers) + 1 // One more attempt, because the first connection may already have been broken.
}

// Invoke makes a unary call; it is part of [grpc.ClientConnInterface]. After a transient error, an idempotent call is
// retried at the next broker.
func (c *Client) Invoke(ctx context.Context, method string, request, reply any, opts ...grpc.CallOption) error {
	if err := checkText(request); err != nil {
		return err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.cfg.RequestTimeout)
		defer cancel()
	}
	tries, tooLarge, sent := c.tries(method, request), 0, false
	var header metadata.MD
	opts = append(opts[:len(opts):len(opts)], grpc.Header(&header))
	var retryBackoff backoff
	for n := 1; ; n++ {
		at := c.current.Load()
		var timeout time.Duration
		if tries != 1 {
			timeout = c.timeoutShare(ctx, n-1)
		}
		err := c.try(ctx, c.brokers[at], timeout, func(ctx context.Context, conn *grpc.ClientConn) error {
			sent = true
			return conn.Invoke(ctx, method, request, reply, opts...)
		})
		// The broker refused the token. The token file may have been replaced since it was read, so one more attempt
		// reads it again.
		isStale := n == 1 && c.cfg.TokenFile != "" && isUnauthenticated(err)
		if err == nil {
			c.logUnansweredStores(method, header)
		}
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case isStale:
		case errors.Is(err, ErrRequestTooLarge):
			// A proxy refused the request because of its size. The path to another broker may have a higher limit. If
			// every path refuses the request, no broker has received it.
			if tooLarge++; tooLarge >= len(c.brokers) {
				return err
			}
			c.switchFrom(at)
		case !isTransient(err) || tries > 1 && n >= tries || tries == 1 && (sent || n >= len(c.brokers)):
			return err
		default:
			tooLarge = 0
			c.switchFrom(at)
		}
		c.cfg.Logger.Debug("howdah: trying again", "method", method, "error", err)
		sleep(ctx, retryBackoff.next())
	}
}

// logUnansweredStores logs the stores that did not answer, because the response of a call for several stores is then
// incomplete.
func (c *Client) logUnansweredStores(method string, header metadata.MD) {
	for _, stores := range header.Get("howdah-unanswered-stores") {
		c.cfg.Logger.Warn("howdah: these stores did not answer: the response lacks their data, and a change did not reach them",
			"method", method, "stores", stores)
	}
}

// timeoutShare returns the timeout of one attempt. It divides the remaining time among the brokers not yet tried in
// this round, so that a silent broker does not use it up.
func (c *Client) timeoutShare(ctx context.Context, attempts int) time.Duration {
	deadline, _ := ctx.Deadline()
	untried := len(c.brokers) - attempts%len(c.brokers)
	return min(maxAttemptTime, max(time.Millisecond, time.Until(deadline)/time.Duration(untried)))
}

// answerTimeout returns how long a producer waits for the answer to a request before its stream counts as broken.
func (c *Client) answerTimeout() time.Duration {
	return min(maxAttemptTime, c.cfg.RequestTimeout/time.Duration(len(c.brokers)))
}

func (c *Client) try(
	ctx context.Context, b *broker, timeout time.Duration, call func(context.Context, *grpc.ClientConn) error,
) error {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	callbacksOf(ctx).setBroker(b)
	ctx = c.inStore(ctx)
	if err := c.checkDatabase(ctx, b, b.conn); err != nil {
		return err
	}
	return b.withBroker(call(ctx, b.conn))
}

// NewStream opens a stream to the broker in use; it is part of [grpc.ClientConnInterface]. Convert the errors of its
// messages with [AsError].
func (c *Client) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption,
) (stream grpc.ClientStream, err error) {
	err = c.try(ctx, c.brokers[c.current.Load()], 0, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		stream, err = conn.NewStream(ctx, desc, method, opts...)
		return err
	})
	if err != nil {
		return nil, err
	}
	return checkedStream{stream}, nil
}
