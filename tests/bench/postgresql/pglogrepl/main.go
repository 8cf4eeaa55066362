// Peer of the benchmark: pglogrepl reads a slot's changes and decodes every value with pgx's types.
//
//	pglogrepl-reader HOST PORT SLOT ROWS
//
// The loop is that of the library's own example, without its printing, and with an eighth of the garbage collections.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgtype"
)

const statusEvery = 10 * time.Second

func main() {
	debug.SetGCPercent(800)
	if err := read(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// reader knows the relations, and counts rows.
type reader struct {
	relations map[uint32]*pglogrepl.RelationMessage
	types     *pgtype.Map
	rows      int
}

func read(arguments []string) error {
	if len(arguments) != 4 {
		return fmt.Errorf("four arguments expected, %d given", len(arguments))
	}
	expected, err := strconv.Atoi(arguments[3])
	if err != nil {
		return fmt.Errorf("reading the number of rows: %w", err)
	}
	ctx := context.Background()
	address := fmt.Sprintf("postgres://menura:menura-secret@%s:%s/bench?replication=database&sslmode=disable", arguments[0], arguments[1])
	connection, err := pgconn.Connect(ctx, address)
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	defer connection.Close(ctx)
	options := pglogrepl.StartReplicationOptions{PluginArgs: []string{"proto_version '1'", "publication_names 'bench'"}}
	if err := pglogrepl.StartReplication(ctx, connection, arguments[2], 0, options); err != nil {
		return fmt.Errorf("starting replication: %w", err)
	}
	counting := reader{relations: map[uint32]*pglogrepl.RelationMessage{}, types: pgtype.NewMap()}
	nextStatus := time.Now().Add(statusEvery)
	for counting.rows < expected {
		if time.Now().After(nextStatus) {
			if err := pglogrepl.SendStandbyStatusUpdate(ctx, connection, pglogrepl.StandbyStatusUpdate{}); err != nil {
				return fmt.Errorf("sending the status: %w", err)
			}
			nextStatus = time.Now().Add(statusEvery)
		}
		message, err := connection.ReceiveMessage(ctx)
		if err != nil {
			return fmt.Errorf("after %d rows: %w", counting.rows, err)
		}
		data, ok := message.(*pgproto3.CopyData)
		if !ok {
			return fmt.Errorf("after %d rows: %T", counting.rows, message)
		}
		if data.Data[0] != pglogrepl.XLogDataByteID {
			continue
		}
		log, err := pglogrepl.ParseXLogData(data.Data[1:])
		if err != nil {
			return fmt.Errorf("after %d rows: %w", counting.rows, err)
		}
		if err := counting.take(log.WALData); err != nil {
			return fmt.Errorf("after %d rows: %w", counting.rows, err)
		}
	}
	if counting.rows != expected {
		return fmt.Errorf("%d rows read, %d expected", counting.rows, expected)
	}
	return nil
}

func (r *reader) take(data []byte) error {
	message, err := pglogrepl.Parse(data)
	if err != nil {
		return err
	}
	switch found := message.(type) {
	case *pglogrepl.RelationMessage:
		r.relations[found.RelationID] = found
	case *pglogrepl.InsertMessage:
		return r.row(found.RelationID, found.Tuple)
	case *pglogrepl.UpdateMessage:
		return r.row(found.RelationID, found.NewTuple)
	}
	return nil
}

func (r *reader) row(relation uint32, tuple *pglogrepl.TupleData) error {
	columns := r.relations[relation].Columns
	values := make([]any, len(tuple.Columns))
	for i, column := range tuple.Columns {
		if column.DataType != pglogrepl.TupleDataTypeText {
			continue
		}
		kind, ok := r.types.TypeForOID(columns[i].DataType)
		if !ok {
			values[i] = string(column.Data)
			continue
		}
		value, err := kind.Codec.DecodeValue(r.types, columns[i].DataType, pgtype.TextFormatCode, column.Data)
		if err != nil {
			return err
		}
		values[i] = value
	}
	r.rows++
	return nil
}
