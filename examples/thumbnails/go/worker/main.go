// Makes thumbnails until SIGTERM or Ctrl-C.
package main

import (
	"context"
	"encoding/json"
	"os"

	"github.com/anthonynsimon/bild/imgio"
	"github.com/anthonynsimon/bild/transform"
	"howdah.dev/examples/thumbnails/thumbnail"
	howdah "howdah.dev/go"
)

func makeThumbnail(ctx context.Context, job *howdah.Job, in thumbnail.Order) ([]byte, error) {
	if len(job.Checkpoint) > 0 {
		return job.Checkpoint, nil // An earlier attempt made the thumbnail, but its ack was lost.
	}
	source, err := imgio.Open(in.Source)
	if os.IsNotExist(err) {
		return nil, err // The file may still appear, so the job is retried.
	} else if err != nil {
		return nil, howdah.Fatal(err)
	}
	_ = job.Progress(ctx, 0.5, "decoded") // Ignores an error, because progress is only shown to operators.
	size := thumbnail.Size{Width: in.Width, Height: max(1, in.Width*source.Bounds().Dy()/source.Bounds().Dx())}
	small := transform.Resize(source, size.Width, size.Height, transform.Lanczos)
	if err := imgio.Save(in.Target, small, imgio.PNGEncoder()); err != nil {
		return nil, err
	}
	result := thumbnail.Must(json.Marshal(size))
	return result, job.SaveCheckpoint(ctx, result)
}

func main() {
	worker := thumbnail.Must(howdah.New(howdah.Config{})).NewWorker(howdah.WorkerConfig{Concurrency: 4})
	worker.Handle("thumbnail.make", howdah.JSON(makeThumbnail))
	thumbnail.Must(worker, worker.RunUntilSignal(context.Background()))
}
