//! The invariants of the wheel, checked by walking all of it. For tests and the simulator.

use super::{LEVELS, NEVER, NOBODY, Node, SLOTS_PER_LEVEL, TimerPlace, Wheel, place_of};

impl<T: Copy> Wheel<T> {
    /// Checks W1 to W6. O(capacity): for tests and the simulator.
    ///
    /// # Panics
    /// If an invariant does not hold.
    pub fn audit(&self) {
        let mut armed_count = 0;
        for level in 0..LEVELS {
            let level_bit = self.levels_occupied >> level & 1;
            assert_eq!(level_bit == 1, self.slots_occupied[level] != 0, "W3: level {level}");
            for slot in 0..SLOTS_PER_LEVEL {
                armed_count += self.audit_slot(TimerPlace { level, slot });
            }
        }
        assert_eq!(armed_count, self.count, "W5: armed");
        let mut free_count = 0;
        let mut index = self.free_head;
        while index != NOBODY {
            assert!(self.nodes[index as usize].payload.is_none(), "W5: {index} is armed and free");
            free_count += 1;
            assert!(free_count <= self.capacity, "W5: the free list is a circle");
            index = self.nodes[index as usize].next;
        }
        assert_eq!(armed_count + free_count, self.nodes.len() as u32, "W5: nodes");
        assert!(self.nodes.len() as u32 <= self.capacity, "W5: capacity");
        let armed = self.nodes.iter().filter(|node| node.payload.is_some());
        let due_tick_min = armed.map(|node| node.due_tick).min().unwrap_or(NEVER);
        assert!(self.due_tick_first <= due_tick_min, "W6: the first");
        assert_eq!(self.due_tick_first, self.bound(), "W6: the first");
        assert_eq!(self.due_tick_first == NEVER, self.count == 0, "W6: none");
    }

    fn audit_slot(&self, place: TimerPlace) -> u32 {
        let slot = &self.slots[place.level][place.slot];
        let slot_bit = self.slots_occupied[place.level] >> place.slot & 1;
        assert_eq!(slot_bit == 1, slot.head != NOBODY, "W3: {place:?}");
        let mut count = 0;
        let mut before: Option<&Node<T>> = None;
        let mut before_index = NOBODY;
        let mut due_tick_min = NEVER;
        let mut index = slot.head;
        while index != NOBODY {
            let node = &self.nodes[index as usize];
            assert!(node.payload.is_some(), "W5: {index} is free and armed");
            assert!(node.due_tick >= self.elapsed_tick, "W1: {index}");
            assert_eq!(place_of(self.elapsed_tick, node.due_tick), place, "W2: {index}");
            assert_eq!(node.prev, before_index, "W2: {index}");
            if let Some(before) = before {
                let same_tick = before.due_tick == node.due_tick;
                assert!(!same_tick || before.generation < node.generation, "W4: {index}");
                assert!(!slot.sorted || before.due_tick <= node.due_tick, "W4: {place:?}");
            }
            due_tick_min = due_tick_min.min(node.due_tick);
            before = Some(node);
            before_index = index;
            count += 1;
            index = node.next;
        }
        assert_eq!(slot.tail, before_index, "W2: {place:?}");
        if !slot.sorted {
            let bound = slot.due_tick_bound;
            assert!(bound <= due_tick_min, "W6: {place:?}");
            assert_eq!(place_of(self.elapsed_tick, bound), place, "W6: {place:?}");
        }
        count
    }
}
