package howdahtest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	howdah "howdah.dev/go"
	"howdah.dev/go/howdahtest"
	"howdah.dev/go/howdahv1"
)

type order struct{ Number int }

func ship(ctx context.Context, job *howdah.Job, in order) (string, error) {
	if in.Number == 0 {
		return "", howdah.Fatal(errors.New("no number"))
	}
	if err := errors.Join(job.Progress(ctx, 0.5, "half"), job.Extend(ctx, time.Minute)); err != nil {
		return "", err
	}
	return "after " + string(job.Checkpoint), nil
}

func TestAHandlerIsPerformedWithoutABroker(t *testing.T) {
	done := howdahtest.Perform(t, howdah.JSON(ship), order{7}, func(job *howdahv1.LeasedJob) { job.Checkpoint = []byte("row 3") })
	if string(done.Result) != `"after row 3"` || done.Err != nil || done.Outcome.GetAck() == nil {
		t.Error(done)
	}
	if len(done.Reports) != 1 || done.Reports[0].GetFraction() != 0.5 || len(done.Extensions) != 1 {
		t.Error(done.Reports, done.Extensions)
	}
	done = howdahtest.Perform(t, howdah.JSON(ship), order{})
	if nack := done.Outcome.GetNack(); !nack.GetNoRetry() || nack.GetError() != "no number" {
		t.Error(done)
	}
}

func TestARecorderRemembersWhatWasEnqueued(t *testing.T) {
	recorder := &howdahtest.Recorder{}
	var jobs howdah.Enqueuer = recorder
	_, err := jobs.Enqueue(t.Context(), "order.ship", order{7}, howdah.Key("7"), howdah.Delay(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	recorder.AssertEnqueued(t, "order.ship", nil)
	recorder.AssertEnqueued(t, "order.ship", order{7}, howdah.Key("7"))
	for _, wrong := range []func(t testing.TB){
		func(t testing.TB) { recorder.AssertEnqueued(t, "order.bill", nil) },
		func(t testing.TB) { recorder.AssertEnqueued(t, "order.ship", order{8}) },
		func(t testing.TB) { recorder.AssertEnqueued(t, "order.ship", nil, howdah.Key("8")) },
	} {
		failing := &failures{TB: t}
		if wrong(failing); failing.count != 1 {
			t.Error("not noticed")
		}
	}
}

// failures counts assertion failures instead of failing the test.
type failures struct {
	testing.TB
	count int
}

func (f *failures) Errorf(string, ...any) { f.count++ }
