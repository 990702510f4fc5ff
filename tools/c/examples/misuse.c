/* Calls everything as it must not be called: each call gives a number, none of them ends the
 * process. Prints what went against that.
 *
 *     misuse DOOR
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "../streamdoor.h"

static int wrong = 0;

static void expect(const char *what, int found, int expected)
{
    if (found != expected) {
        printf("%s: %d instead of %d: %s\n", what, found, expected, sd_error_text());
        wrong = 1;
    }
}

#define EXPECT(expected, call) expect(#call, call, expected)

static void *complete(void *writer)
{
    EXPECT(SD_OK, sd_complete(*(sd_writer *)writer));
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    sd_door door = {0}, none = {0};
    sd_reader reader = {0}, stale_reader;
    sd_writer writer = {0}, stale_writer, held;
    sd_delivery delivery = SD_DELIVERY_INIT, unset;
    sd_read_options reads = SD_READ_OPTIONS_INIT;
    sd_produce_options produces = SD_PRODUCE_OPTIONS_INIT;
    char id[64], small[4];
    void *room;
    uint64_t seq;
    memset(&unset, 0, sizeof unset);

    EXPECT(SD_ERROR_NO_SERVER, sd_open("/nowhere/at/all", NULL, &door));
    EXPECT(SD_ERROR_NO_SERVER, sd_open("/", NULL, &door));
    EXPECT(SD_ERROR_ARGUMENT, sd_open("\xff", NULL, &door));
    EXPECT(SD_ERROR_ARGUMENT, sd_open(argv[1], NULL, NULL));
    EXPECT(SD_ERROR_ARGUMENT, sd_open(argv[1], "not a\ntoken", &door));
    EXPECT(SD_OK, sd_open(argv[1], NULL, &door));
    EXPECT(SD_ERROR_NAME, sd_close(none));

    EXPECT(SD_ERROR_NAME, sd_read(none, "x", NULL, &reader));
    EXPECT(SD_ERROR_ARGUMENT, sd_read(door, NULL, NULL, &reader));
    EXPECT(SD_ERROR_ARGUMENT, sd_read(door, "x", NULL, NULL));
    EXPECT(SD_ERROR_REFUSED, sd_read(door, "nobody-knows-this", NULL, &reader));
    EXPECT(SD_ERROR_ARGUMENT, sd_run(door, "x", "{", NULL, &reader));
    EXPECT(SD_ERROR_REFUSED, sd_run(door, "nobody-knows-this", NULL, NULL, &reader));
    EXPECT(SD_ERROR_NAME, sd_poll(reader, &delivery));
    EXPECT(SD_ERROR_NAME, sd_next(reader, 0, &delivery));
    EXPECT(SD_ERROR_NAME, sd_fd(reader));
    EXPECT(SD_ERROR_NAME, sd_watch(reader));
    EXPECT(SD_ERROR_NAME, sd_close_reader(reader));

    EXPECT(SD_ERROR_ARGUMENT, sd_produce(door, NULL, NULL, &writer));
    produces.struct_size = 3;
    EXPECT(SD_ERROR_ARGUMENT, sd_produce(door, "misuse", &produces, &writer));
    produces.struct_size = sizeof produces;
    produces.policy = 99;
    EXPECT(SD_ERROR_ARGUMENT, sd_produce(door, "misuse", &produces, &writer));
    produces.policy = SD_POLICY_BLOCK;
    EXPECT(SD_OK, sd_produce(door, "misuse", &produces, &writer));
    EXPECT(SD_ERROR_ARGUMENT, sd_writer_execution(writer, small, sizeof small));
    EXPECT(SD_ERROR_ARGUMENT, sd_writer_execution(writer, NULL, 64));
    EXPECT(SD_OK, sd_writer_execution(writer, id, sizeof id));
    EXPECT(SD_ERROR_ARGUMENT, sd_send(writer, NULL, 1, NULL));
    EXPECT(SD_ERROR_ARGUMENT, sd_send(writer, "x", (size_t)-1, NULL));
    EXPECT(SD_ERROR_ARGUMENT, sd_send_as(writer, 99, 0, "x", 1, NULL));
    EXPECT(SD_ERROR_ARGUMENT, sd_send_as(writer, SD_OUTPUT, 64, "x", 1, NULL));
    EXPECT(SD_ERROR_ARGUMENT, sd_publish(writer, SD_OUTPUT, 0, 1, NULL));
    EXPECT(SD_ERROR_ARGUMENT, sd_lend(writer, 1, NULL));
    EXPECT(SD_ERROR_TOO_LARGE, sd_lend(writer, (size_t)1 << 40, &room));
    EXPECT(SD_OK, sd_lend(writer, 4, &room));
    EXPECT(SD_ERROR_ARGUMENT, sd_publish(writer, SD_OUTPUT, 0, 5, NULL));
    EXPECT(SD_ERROR_ARGUMENT, sd_publish(writer, SD_OUTPUT, 0, 1, NULL)); /* Lent no more. */
    EXPECT(SD_OK, sd_lend(writer, 4, &room));
    memcpy(room, "lent", 4);
    EXPECT(SD_OK, sd_publish(writer, SD_OUTPUT, 1, 4, &seq));
    EXPECT(1, (int)seq);
    EXPECT(SD_OK, sd_send(writer, NULL, 0, &seq));
    EXPECT(2, (int)seq);
    EXPECT(SD_DELIVERY, sd_try_send(writer, SD_JSON, 2, "{}", 2, &seq));
    EXPECT(SD_ERROR_ARGUMENT, sd_progress(writer, 0.0 / 0.0, 0, NULL));
    EXPECT(SD_OK, sd_progress(writer, 1, 2, "half"));
    EXPECT(SD_OK, sd_expect(writer, 3));
    EXPECT(0, sd_is_stopped(writer));

    reads.policy = SD_POLICY_BLOCK;
    reads.kinds = 1u << 31;
    EXPECT(SD_ERROR_ARGUMENT, sd_read(door, id, &reads, &reader));
    reads.kinds = 0;
    reads.from = 9;
    EXPECT(SD_ERROR_ARGUMENT, sd_read(door, id, &reads, &reader));
    reads.from = SD_FROM_START;
    EXPECT(SD_OK, sd_read(door, id, &reads, &reader));
    EXPECT(SD_ERROR_ARGUMENT, sd_poll(reader, NULL));
    EXPECT(SD_ERROR_ARGUMENT, sd_poll(reader, &unset));
    EXPECT(SD_ERROR_ARGUMENT, sd_poll(reader, (sd_delivery *)((char *)&delivery + 1)));
    EXPECT(SD_DELIVERY, sd_next(reader, 10000, &delivery));
    expect("the first chunk", delivery.type == SD_CHUNK && delivery.seq == 1, 1);
    expect("its bytes", delivery.size == 4 && memcmp(delivery.data, "lent", 4) == 0, 1);
    expect("its key", (int)delivery.key, 1);
    held.name = reader.name; /* A name of another kind. */
    EXPECT(SD_ERROR_NAME, sd_complete(held));

    /* It waits for the server on another thread, while the reader takes the rest here. */
    pthread_t thread;
    stale_writer = writer;
    pthread_create(&thread, NULL, complete, &writer);
    int chunks = 1, found;
    while ((found = sd_next(reader, 10000, &delivery)) == SD_DELIVERY)
        chunks += delivery.type == SD_CHUNK;
    pthread_join(thread, NULL);
    EXPECT(SD_OVER, found);
    EXPECT(3, chunks);
    expect("the end", delivery.type == SD_END && delivery.outcome == SD_COMPLETED, 1);
    EXPECT(SD_OVER, sd_poll(reader, &delivery));
    stale_reader = reader;
    EXPECT(SD_OK, sd_close_reader(reader));
    EXPECT(SD_ERROR_NAME, sd_poll(stale_reader, &delivery));
    EXPECT(SD_ERROR_NAME, sd_send(stale_writer, "x", 1, NULL));
    EXPECT(SD_ERROR_NAME, sd_fail(stale_writer, "x"));
    EXPECT(SD_ERROR_NAME, sd_close_writer(stale_writer));
    EXPECT(SD_OK, sd_close(door));
    EXPECT(SD_ERROR_NAME, sd_close(door));
    if (!wrong)
        printf("as it should be\n");
    return wrong;
}
