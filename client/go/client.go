// Package howdah is the Go client of Howdah, a gRPC streaming job broker on PostgreSQL.
//
// A [Client] enqueues jobs and calls what operators call. A [Worker] runs jobs: it opens one stream to a broker, which
// pushes as many jobs as the worker runs at once. A [Producer] enqueues many jobs over one stream, in batches.
//
// When an enqueue returns, the job is committed, and it is never stored twice. The outcome of a handler is sent until
// the broker confirms it. When a stream breaks, the worker goes on at any broker with the jobs that it holds.
//
// The messages and stubs of the protocol are in the package [howdah.dev/go/howdahv1]. A [Client] is a
// [grpc.ClientConnInterface], so stubs have its deadlines, retries and errors:
//
//	jobs := howdahv1.NewJobServiceClient(client)
//	answer, err := jobs.CancelJobs(ctx, &howdahv1.CancelJobsRequest{Ids: []int64{17}})
package howdah

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"howdah.dev/go/howdahv1"
)

// Version is the version of this module. Brokers show it beside the worker's labels.
const Version = "0.1.0"

// Config has the settings of a [Client]. All may be left out: addresses and credentials then come from the variables
// of the command line, HOWDAH_SERVER, HOWDAH_TOKEN, HOWDAH_TOKEN_FILE, HOWDAH_TLS_CA, HOWDAH_TLS_CLIENT_CERT,
// HOWDAH_TLS_CLIENT_KEY and HOWDAH_CLIENT_INSECURE.
type Config struct {
	// Brokers of one database: `host:port`, `http://host:port`, or `https://host:port` for TLS. An entry may be a list
	// with commas. If one cannot be reached, the next is used. Default: HOWDAH_SERVER, else 127.0.0.1:7432.
	Servers []string
	// For `https://` addresses. Default: the files of the environment (see [TLSFiles]), else the authorities of the
	// system.
	TLS *tls.Config
	// The token that goes with each call.
	Token Secret
	// A file with the token, instead of Token. It may be replaced while the client runs.
	TokenFile string
	// Sends the token over `http://` to other machines too: for networks that encrypt by themselves.
	InsecureToken bool
	// The longest time of one attempt to connect. Default: 5 s.
	ConnectTimeout time.Duration
	// The longest time of a call whose context has no deadline, with its retries. Default: 30 s.
	RequestTimeout time.Duration
	// The largest message sent or accepted. Default: 16 MiB.
	MaxMessageBytes int
	// Default: [slog.Default].
	Logger *slog.Logger
	// Wraps each enqueue, the first one outermost.
	EnqueueMiddleware []func(EnqueueFunc) EnqueueFunc
	// More options for connections, such as statistics handlers or a dialer.
	DialOptions []grpc.DialOption
}

// Secret is a text that is never shown.
type Secret string

// String shows nothing, GoString and MarshalText neither.
func (Secret) String() string { return "(secret)" }

// GoString is for %#v.
func (Secret) GoString() string { return "(secret)" }

// MarshalText is for logs in JSON.
func (Secret) MarshalText() ([]byte, error) { return []byte("(secret)"), nil }

func (c *Config) complete() (err error) {
	if env := os.Getenv; c.Token == "" && c.TokenFile == "" {
		c.Token, c.TokenFile = Secret(env("HOWDAH_TOKEN")), env("HOWDAH_TOKEN_FILE")
		if c.Token != "" && c.TokenFile != "" {
			text := "HOWDAH_TOKEN and HOWDAH_TOKEN_FILE are both set; one is enough"
			return &Error{Code: codes.InvalidArgument, Field: "Token", Message: text}
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

// Client has connections to one or more brokers of one database. It is safe for concurrent use.
type Client struct {
	*shared
	store   string // Empty: the broker chooses.
	enqueue EnqueueFunc
}

// shared is what a client has in common with those that [Client.InStore] makes of it.
type shared struct {
	cfg      Config
	brokers  []*broker
	current  atomic.Int64 // The index of the broker that calls use.
	database atomic.Pointer[database]
}

// New makes a client. It connects at the first call, so that a broker may start later. Close it at the end.
func New(cfg Config) (*Client, error) {
	if err := cfg.complete(); err != nil {
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
	c.enqueue = wrapped(all.cfg.EnqueueMiddleware, c.enqueueOnce)
	return c
}

// InStore returns the same client for one store of a broker that serves several: its calls are about that store alone,
// and its jobs go there. It shares the connections of this one, so only one of them is closed. Workers get jobs from all
// stores, whatever this is.
func (c *Client) InStore(name string) (*Client, error) {
	// What metadata may have in it. Whether there is such a store, the broker says.
	if strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r > '~' }) {
		text := fmt.Sprintf("%q is not the name of a store", name)
		return nil, &Error{Code: codes.InvalidArgument, Field: "store", Message: text}
	}
	return newClient(c.shared, name), nil
}

// Close closes the connections. Stop workers and producers before.
func (c *Client) Close() (err error) {
	for _, b := range c.brokers {
		err = errors.Join(err, b.conn.Close())
	}
	return err
}

// moveOn lets calls use the next broker, unless another call has moved on already.
func (c *Client) moveOn(seen int64) {
	c.current.CompareAndSwap(seen, (seen+1)%int64(len(c.brokers)))
}

// tries says how often a call may be made; 0: until its deadline, since its request key makes that safe.
func (c *Client) tries(method string, request any) int {
	if keyed, ok := request.(interface{ GetRequestKey() string }); ok && keyed.GetRequestKey() != "" {
		return 0
	} else if ok || method == howdahv1.WorkerService_PullJobs_FullMethodName ||
		method == howdahv1.AccessService_CreateToken_FullMethodName {
		return 1
	}
	return len(c.brokers) + 1 // Once more in case a connection was dead.
}

// Invoke makes a unary call: it is part of [grpc.ClientConnInterface]. Calls that are safe to repeat are tried again at
// the next broker after errors that pass.
func (c *Client) Invoke(ctx context.Context, method string, request, reply any, opts ...grpc.CallOption) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.cfg.RequestTimeout)
		defer cancel()
	}
	tries := c.tries(method, request)
	var header metadata.MD
	opts = append(opts[:len(opts):len(opts)], grpc.Header(&header))
	var pause pauses
	for n := 1; ; n++ {
		at := c.current.Load()
		err := c.try(ctx, c.brokers[at], tries != 1, func(ctx context.Context, conn *grpc.ClientConn) error {
			return conn.Invoke(ctx, method, request, reply, opts...)
		})
		// The file of the token may have been replaced since it was read.
		isStale := n == 1 && c.cfg.TokenFile != "" && isUnauthenticated(err)
		if err == nil {
			c.noteUnanswered(method, header)
		}
		if err == nil || ctx.Err() != nil || !isStale && (!isPassing(err) || n == tries) {
			return err
		}
		if !isStale {
			c.moveOn(at)
		}
		c.cfg.Logger.Debug("howdah: trying again", "method", method, "error", err)
		sleep(ctx, pause.next())
	}
}

// noteUnanswered logs which stores an answer leaves out: nobody has to guess whether a list is complete.
func (c *Client) noteUnanswered(method string, header metadata.MD) {
	for _, stores := range header.Get("howdah-unanswered-stores") {
		c.cfg.Logger.Warn("howdah: these stores did not answer: what they have is missing, and a change has not reached them",
			"method", method, "stores", stores)
	}
}

func (c *Client) try(
	ctx context.Context, b *broker, limited bool, call func(context.Context, *grpc.ClientConn) error,
) error {
	if limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, longestTry)
		defer cancel()
	}
	enqueueingOf(ctx).at(b)
	ctx = c.inStore(ctx)
	if err := c.check(ctx, b, b.conn); err != nil {
		return err
	}
	return b.explain(call(ctx, b.conn))
}

// NewStream opens a stream to the broker that calls use now: it is part of [grpc.ClientConnInterface]. Convert the
// errors of its messages with [AsError].
func (c *Client) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption,
) (stream grpc.ClientStream, err error) {
	err = c.try(ctx, c.brokers[c.current.Load()], false, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		stream, err = conn.NewStream(ctx, desc, method, opts...)
		return err
	})
	return stream, err
}
