// Package thumbnail contains the types that the producer and the worker share.
package thumbnail

import "log"

// Order is the payload of a job of type thumbnail.make.
type Order struct {
	Source string `json:"source"`
	Target string `json:"target"`
	Width  int    `json:"width"`
}

// Size is the result of a job of type thumbnail.make.
type Size struct {
	Width  int `json:"width"`
	Height int `json:"height"`
}

// Must ends the program on an error.
func Must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
