/*
 * What libraries read from the environment before main.
 */
#ifndef CLI_BASE_START_H
#define CLI_BASE_START_H

/* Sets what they should have found there and starts the program over; else, or where that cannot be
 * done, returns. Comes before everything else. */
void start_settle(char **argv);

#endif
