package main

import (
	"context"
	"errors"
	"io/fs"
	"log"

	"github.com/anthonynsimon/bild/imgio"
	"github.com/anthonynsimon/bild/transform"
	howdah "howdah.dev/go"
)

func makeThumbnail(ctx context.Context, job *howdah.Job, in struct {
	Source, Target string
	Width          int
}) (any, error) {
	source, err := imgio.Open(in.Source)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, err // It may come: the job is tried again.
	} else if err != nil {
		return nil, howdah.Fatal(err)
	}
	reported := job.Progress(ctx, 0.5, "decoded")
	height := max(1, in.Width*source.Bounds().Dy()/source.Bounds().Dx())
	saved := imgio.Save(in.Target, transform.Resize(source, in.Width, height, transform.Lanczos), imgio.PNGEncoder())
	return map[string]int{"width": in.Width, "height": height}, errors.Join(reported, saved, job.SaveCheckpoint(ctx, []byte(in.Target)))
}

func main() {
	client, err := howdah.New(howdah.Config{})
	if err == nil {
		worker := client.NewWorker(howdah.WorkerConfig{Concurrency: 4})
		worker.Handle("thumbnail.make", howdah.JSON(makeThumbnail))
		err = worker.RunUntilSignal(context.Background())
	}
	if err != nil {
		log.Fatal(err)
	}
}
