// Enqueues a thumbnail job for each PNG file of a directory, and prints the results: producer PICTURES THUMBNAILS
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"howdah.dev/examples/thumbnails/thumbnail"
	howdah "howdah.dev/go"
)

func main() {
	client, ctx := thumbnail.Must(howdah.New(howdah.Config{})), context.Background()
	pictures, thumbnails := thumbnail.Must(filepath.Abs(os.Args[1])), thumbnail.Must(filepath.Abs(os.Args[2]))
	thumbnail.Must(thumbnails, os.MkdirAll(thumbnails, 0o755))
	names, ids := map[int64]string{}, []int64{}
	for _, source := range thumbnail.Must(filepath.Glob(filepath.Join(pictures, "*.png"))) {
		order := thumbnail.Order{Source: source, Target: filepath.Join(thumbnails, filepath.Base(source)), Width: 128}
		job := thumbnail.Must(client.Enqueue(ctx, "thumbnail.make", order, howdah.Key(source)))
		names[job.Id], ids = filepath.Base(source), append(ids, job.Id)
	}
	for job, err := range client.Wait(ctx, ids...) {
		var size thumbnail.Size
		if json.Unmarshal(thumbnail.Must(job, err).Result, &size) == nil {
			fmt.Printf("%s %dx%d\n", names[job.Id], size.Width, size.Height)
		} else {
			fmt.Println(names[job.Id], "failed:", job.Failures[len(job.Failures)-1].Error)
		}
	}
}
