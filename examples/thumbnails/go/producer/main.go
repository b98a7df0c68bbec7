// Enqueues a thumbnail for each PNG file of a directory, and prints what has become of them: producer PICTURES THUMBNAILS
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"

	howdah "howdah.dev/go"
)

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func main() {
	client, ctx := must(howdah.New(howdah.Config{})), context.Background()
	pictures, thumbnails := must(filepath.Abs(os.Args[1])), must(filepath.Abs(os.Args[2]))
	must(thumbnails, os.MkdirAll(thumbnails, 0o755))
	names, ids := map[int64]string{}, []int64{}
	for _, source := range must(filepath.Glob(filepath.Join(pictures, "*.png"))) {
		order := map[string]any{"source": source, "target": filepath.Join(thumbnails, filepath.Base(source)), "width": 128}
		job := must(client.Enqueue(ctx, "thumbnail.make", order, howdah.Key(source)))
		names[job.Id], ids = filepath.Base(source), append(ids, job.Id)
	}
	for job, err := range client.Wait(ctx, ids...) {
		var size struct{ Width, Height int }
		if json.Unmarshal(must(job, err).Result, &size) == nil {
			fmt.Printf("%s %dx%d\n", names[job.Id], size.Width, size.Height)
		} else {
			fmt.Println(names[job.Id], "failed:", job.Failures[len(job.Failures)-1].Error)
		}
	}
}
