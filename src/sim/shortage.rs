//! Memory that becomes short and plentiful again: the machine's side, as made-up readings.

use crate::base::ExecutionId;
use crate::limits;
use crate::memory::{Geometry, Pressure, Readings};
use crate::sim::run::Sim;
use crate::stream::ExecutionState;

/// The text that only the error of an execution with a refused ring contains.
pub(super) const REFUSED_TEXT: &str = "this tool declares";

impl Sim {
    /// Changes the kernel's readings about memory.
    pub fn change_memory(&mut self) {
        if self.waits_with_chunks() {
            // The ring memory that is left takes none of its chunks.
            let readings = Readings { cgroup_limit_bytes: Some(0), ..Readings::default() };
            self.tell_memory(&readings);
            return;
        }
        if self.random.chance(1, 3) {
            self.calm_memory();
            return;
        }
        let random = &mut self.random;
        // Thresholds and the values just below them; the others are in the tests of the table.
        let percent = [0.0, 9.9, 10.0, 30.0, 60.0, 100.0][random.below(6) as usize];
        // A tenth of it is for rings: hardly any, or up to more than the machine has.
        let limit_bytes = match random.below(4) {
            0 => Some(random.between(0, self.plan.rings_bytes_max)),
            1 => Some(random.between(0, 20 * self.plan.rings_bytes_max)),
            _ => None,
        };
        let readings = Readings {
            memory_some_avg10: random.chance(3, 4).then_some(percent as f32),
            cgroup_limit_bytes: limit_bytes,
            ..Readings::default()
        };
        self.tell_memory(&readings);
    }

    /// True if an execution waits for a ring that a smaller one cannot replace.
    fn waits_with_chunks(&mut self) -> bool {
        let queued =
            self.statuses().into_iter().filter(|status| status.state == ExecutionState::Queued);
        let queued: Vec<ExecutionId> = queued.map(|status| status.id).collect();
        let smallest = Geometry::of_class(limits::RING_CLASS_BYTES[0]).length_max();
        let scene = self.shared.lock();
        let mut models = scene.executions.iter().filter(|model| model.chunk_bytes > smallest);
        models.any(|model| queued.contains(&model.id))
    }

    /// Reports plenty of memory, for long enough to be believed.
    pub fn calm_memory(&mut self) {
        // The first few may end an earlier calm that was not as calm.
        for _ in 0..2 * limits::PRESSURE_CALM_SAMPLES {
            self.tell_memory(&Readings::default());
        }
        assert_eq!(self.shard.memory().pressure, Pressure::Normal);
        assert_eq!(self.shard.memory().rings_bytes_max, self.plan.rings_bytes_max);
    }

    fn tell_memory(&mut self, readings: &Readings) {
        self.shared.lock().say(|| format!("memory: {readings:?}"));
        let leased_bytes = self.shard.ring_usage().leased_bytes;
        let pressure = self.shard.set_readings(readings);
        let memory = self.shard.memory();
        let mut scene = self.shared.lock();
        scene.coverage.count(&format!("memory {pressure}"));
        let is_above = memory.usage.leased_bytes > memory.rings_bytes_max;
        if is_above && memory.usage.leased_bytes > leased_bytes {
            scene.fail(format!("a ring was leased above the limit: {memory:?}"));
        }
        if is_above {
            scene.coverage.count("memory limit below what is leased");
        }
    }
}
