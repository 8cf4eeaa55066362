// Peer of the benchmark: go-mysql reads one case to the end of its file, decodes every value and verifies the checksums.
//
//	go-mysql-reader HOST PORT FILE ROWS default|tuned
//
// "default" is its documented loop. "tuned" is the least work that we found it can do: no queue between its goroutines,
// no GTID set, times as values instead of text, and a garbage collector that runs an eighth as often.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strconv"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
)

// counter counts rows, an update's two images as one, and says when all have come.
type counter struct {
	rows, expected int
	done           chan struct{}
}

func (c *counter) HandleEvent(event *replication.BinlogEvent) error {
	found, ok := event.Event.(*replication.RowsEvent)
	if !ok || c.rows >= c.expected {
		return nil
	}
	if event.Header.EventType == replication.UPDATE_ROWS_EVENTv2 {
		c.rows += len(found.Rows) / 2
	} else {
		c.rows += len(found.Rows)
	}
	if c.rows >= c.expected {
		close(c.done)
	}
	return nil
}

func main() {
	if err := read(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func read(arguments []string) error {
	if len(arguments) != 5 {
		return fmt.Errorf("five arguments expected, %d given", len(arguments))
	}
	port, err := strconv.ParseUint(arguments[1], 10, 16)
	if err != nil {
		return fmt.Errorf("reading the port: %w", err)
	}
	expected, err := strconv.Atoi(arguments[3])
	if err != nil {
		return fmt.Errorf("reading the number of rows: %w", err)
	}
	count := &counter{expected: expected, done: make(chan struct{})}
	config := replication.BinlogSyncerConfig{
		ServerID:         77004,
		Flavor:           mysql.MySQLFlavor,
		Host:             arguments[0],
		Port:             uint16(port),
		User:             "menura",
		Password:         "menura-secret",
		VerifyChecksum:   true,
		DisableRetrySync: true,
		Logger:           slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	isTuned := arguments[4] == "tuned"
	if isTuned {
		debug.SetGCPercent(800)
		config.ParseTime = true
		config.DiscardGTIDSet = true
		config.SynchronousEventHandler = count
	}
	syncer := replication.NewBinlogSyncer(config)
	defer syncer.Close()
	stream, err := syncer.StartSync(mysql.Position{Name: arguments[2], Pos: 4})
	if err != nil {
		return fmt.Errorf("asking for %s: %w", arguments[2], err)
	}
	if isTuned {
		<-count.done
	}
	for count.rows < expected {
		event, err := stream.GetEvent(context.Background())
		if err != nil {
			return fmt.Errorf("after %d rows: %w", count.rows, err)
		}
		if err := count.HandleEvent(event); err != nil {
			return err
		}
	}
	if count.rows != expected {
		return fmt.Errorf("%d rows read, %d expected", count.rows, expected)
	}
	return nil
}
