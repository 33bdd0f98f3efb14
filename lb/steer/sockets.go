package steer

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
)

// sockets are the AF_XDP sockets by slot and queue. Queues that lose theirs with the process
// are held, see hold.go.
type sockets struct {
	redirect *ebpf.Map // to the sockets
	held     *ebpf.Map // queues, by slot

	mu     sync.Mutex
	queues [MaxSlots]uint64 // guarded by mu; those with a socket
	own    [MaxSlots]uint64 // guarded by mu; as queues, without those of an earlier process
	took   bool             // guarded by mu; a queue has a socket, or had
}

// adopt learns what an earlier process has said of its queues.
func (s *sockets) adopt() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for slot := range s.queues {
		if err := s.held.Lookup(uint32(slot), &s.queues[slot]); err != nil {
			return fmt.Errorf("queues of the last process: %w", err)
		}
	}
	return nil
}

// settle forgets the queues of the earlier process.
func (s *sockets) settle() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for slot := range MaxSlots {
		if slot != guardSlot && s.queues[slot] != s.own[slot] {
			s.queues[slot] = s.own[slot]
			errs = append(errs, s.hold(slot))
		}
	}
	return errors.Join(errs...)
}

// holdAll holds all queues of a slot, which have no sockets.
func (s *sockets) holdAll(slot int) error { return s.held.Put(uint32(slot), ^uint64(0)) }

// everTook reports whether a queue has a socket, or had.
func (s *sockets) everTook() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.took
}

// set makes packets of a queue go to the AF_XDP socket fd. The entry
// goes by itself when the socket is closed.
func (s *sockets) set(slot, queue, fd int) error {
	if err := checkSlot(slot, queue); err != nil {
		return err
	}
	if err := s.redirect.Put(uint32(slot*MaxQueues+queue), uint32(fd)); err != nil {
		return fmt.Errorf("set socket of slot %d queue %d: %w", slot, queue, err)
	}
	return s.note(slot, queue, true)
}

// setAll is set for the first queues of a slot, by queue: for all or, after an
// error, for none.
func (s *sockets) setAll(slot int, fds []int) error {
	for queue, fd := range fds {
		if err := s.set(slot, queue, fd); err != nil {
			for q := range queue + 1 {
				err = errors.Join(err, s.clear(slot, q))
			}
			return err
		}
	}
	return nil
}

// clear makes packets of a queue go to the kernel. A queue without a
// socket is not an error.
func (s *sockets) clear(slot, queue int) error {
	if err := checkSlot(slot, queue); err != nil {
		return err
	}
	if err := s.note(slot, queue, false); err != nil {
		return err
	}
	err := s.redirect.Delete(uint32(slot*MaxQueues + queue))
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("clear socket of slot %d queue %d: %w", slot, queue, err)
	}
	return nil
}

// note notes whether a queue has a socket.
func (s *sockets) note(slot, queue int, has bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queues[slot] &^= 1 << queue
	s.own[slot] &^= 1 << queue
	if has {
		s.queues[slot] |= 1 << queue
		s.own[slot] |= 1 << queue
		s.took = true
	}
	return s.hold(slot)
}

// noteNone notes that no queue of a slot has a socket.
func (s *sockets) noteNone(slot int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queues[slot], s.own[slot] = 0, 0
	return s.hold(slot)
}

// hold brings the held queues of a slot to the kernel. The caller holds mu.
func (s *sockets) hold(slot int) error {
	if err := s.held.Put(uint32(slot), s.queues[slot]); err != nil {
		return fmt.Errorf("note sockets of slot %d: %w", slot, err)
	}
	return nil
}

func checkSlot(slot, queue int) error {
	if slot < 0 || slot >= MaxSlots || queue < 0 || queue >= MaxQueues {
		return fmt.Errorf("slot %d queue %d: at most %d interfaces of %d queues each", slot, queue, MaxSlots, MaxQueues)
	}
	return nil
}
