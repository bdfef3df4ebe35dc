// Judges a history of a keyed queue by Porcupine, a checker of linearizability: whether there is an
// order of its operations, each somewhere between its call and its return, in which the queue of
// every key is first in, first out, with one message in hand at a time.
//
//	histories < history.jsonl
//
// reads a JSON object a line, an operation each:
//
//	op      put, take, done, back (it is in nobody's hand any more), try (it has failed once more),
//	        cancel
//	key     the key that it is about; keys are judged one by one
//	id      of the message: put, take, try, cancel
//	place   put: the number that the queue gave it (the end of its token), 0 where nobody has seen it;
//	        these rise
//	fence   of the delivery: take, done, back
//	tries   that the message had when it was taken
//	said    ok, stale (it was not that consumer's any more), or unknown: nobody has heard
//	call, return    when it began and when that was known; 0 for a return that never came
//
// and prints "ok", the operations and the keys, and exits with 0; or the first key whose operations
// fit no such order, with 1; with 2 where it is not decided within a minute or cannot be read.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

type operation struct {
	Op     string `json:"op"`
	Key    string `json:"key"`
	Id     int64  `json:"id"`
	Place  int64  `json:"place"`
	Fence  int64  `json:"fence"`
	Tries  int    `json:"tries"`
	Said   string `json:"said"`
	Call   int64  `json:"call"`
	Return int64  `json:"return"`
}

// One key's queue: `waiting` in order, the first of which may be in hand (`hand`: its fence).
type state struct {
	waiting []int64
	place   int64
	hand    int64
	last    int64
	tries   int
}

func (s state) without(place int) state {
	waiting := make([]int64, 0, len(s.waiting)-1)
	waiting = append(waiting, s.waiting[:place]...)
	s.waiting = append(waiting, s.waiting[place+1:]...)
	if place == 0 {
		s.hand, s.tries = 0, 0
	}
	return s
}

// What the queue may be like behind an operation: nothing where it cannot have been.
func step(from interface{}, input interface{}, _ interface{}) []interface{} {
	s, op := from.(state), input.(operation)
	mine := s.hand != 0 && s.hand == op.Fence
	switch op.Op {
	case "put":
		if op.Place != 0 && op.Place <= s.place {
			return nil
		}
		s.place = max(s.place, op.Place)
		waiting := make([]int64, 0, len(s.waiting)+1)
		s.waiting = append(append(waiting, s.waiting...), op.Id)
		return []interface{}{s}
	case "take":
		if len(s.waiting) == 0 || s.waiting[0] != op.Id || s.hand != 0 || op.Fence <= s.last || op.Tries != s.tries {
			return nil
		}
		s.hand, s.last = op.Fence, op.Fence
		return []interface{}{s}
	case "cancel":
		for place, id := range s.waiting {
			if id == op.Id && !(place == 0 && s.hand != 0) {
				if op.Said == "ok" {
					return []interface{}{s.without(place)}
				}
				return []interface{}{s, s.without(place)}
			}
		}
	case "done":
		if mine && op.Said == "ok" {
			return []interface{}{s.without(0)}
		}
		if mine && op.Said == "unknown" {
			return []interface{}{s, s.without(0)}
		}
	case "back":
		if mine && op.Said != "stale" {
			s.hand = 0
			return []interface{}{s}
		}
	case "try":
		if len(s.waiting) > 0 && s.waiting[0] == op.Id && s.hand == 0 {
			more := s
			more.tries++
			if op.Said == "ok" {
				return []interface{}{more}
			}
			return []interface{}{s, more}
		}
	}
	if op.Said == "unknown" || (op.Said == "stale" && !mine) {
		return []interface{}{s}
	}
	return nil
}

func equal(left, right interface{}) bool {
	a, b := left.(state), right.(state)
	if a.place != b.place || a.hand != b.hand || a.last != b.last || a.tries != b.tries || len(a.waiting) != len(b.waiting) {
		return false
	}
	for place := range a.waiting {
		if a.waiting[place] != b.waiting[place] {
			return false
		}
	}
	return true
}

func main() {
	model := porcupine.NondeterministicModel{
		Init:  func() []interface{} { return []interface{}{state{}} },
		Step:  step,
		Equal: equal,
	}
	byKey, count, err := read()
	if err != nil {
		fmt.Fprintln(os.Stderr, "no history:", err)
		os.Exit(2)
	}
	keys := make([]string, 0, len(byKey))
	for key := range byKey {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	for _, key := range keys {
		result := porcupine.CheckOperationsTimeout(model.ToModel(), byKey[key], time.Minute)
		if result != porcupine.Ok {
			fmt.Printf("%v: the %d operations of key %s\n", result, len(byKey[key]), key)
			if result == porcupine.Illegal {
				os.Exit(1)
			}
			os.Exit(2)
		}
	}
	fmt.Printf("ok: %d operations, %d keys\n", count, len(keys))
}

func read() (map[string][]porcupine.Operation, int, error) {
	byKey, count := map[string][]porcupine.Operation{}, 0
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var op operation
		if err := json.Unmarshal(lines.Bytes(), &op); err != nil {
			return nil, 0, err
		}
		end := op.Return
		if end == 0 {
			end = math.MaxInt64
		}
		byKey[op.Key] = append(byKey[op.Key], porcupine.Operation{
			ClientId: 0, Input: op, Call: op.Call, Output: nil, Return: end,
		})
		count++
	}
	return byKey, count, lines.Err()
}
